"""What requests can be told apart by: their endpoint, their route, how far they are. Each value is a label."""

from enum import StrEnum

from router.body import PrefillRules
from router.error_shapes import ANTHROPIC_ERRORS, OPENAI_ERRORS, RESPONSES_ERRORS, ErrorShape
from router.prefill_rules import COMPLETIONS_PREFILL, MESSAGES_PREFILL, RESPONSES_PREFILL

NO_MODEL = "none"
ID_HEADERS = (b"x-request-id", b"request-id")
DONE = (b"data: [DONE]",)
RESPONSE_ENDS = (b"event: response.completed", b"event: response.incomplete", b"event: response.failed")
MESSAGE_STOP = (b"event: message_stop",)


class Endpoint(StrEnum):
    """An endpoint that workers answer; the value is its label in metrics and logs. One row says all that differs.

    Its hash, as below, is the text's, to which members are equal: an enumeration's own is written in Python and slow.
    """

    url_path: str
    """The same on the router and on the workers."""
    prefill: PrefillRules | None
    """None: one worker answers alone, without a handoff."""
    stream_ends: tuple[bytes, ...]
    """How the last event of a whole stream may begin."""
    errors: ErrorShape
    id_headers: tuple[bytes, ...]
    """Which headers of an answer tell the request's id: Anthropic's clients read another than OpenAI's."""

    def __new__(
        cls,
        label: str,
        url_path: str,
        prefill: PrefillRules | None = None,
        stream_ends: tuple[bytes, ...] = (),
        errors: ErrorShape = OPENAI_ERRORS,
    ) -> "Endpoint":
        endpoint = str.__new__(cls, label)
        endpoint._value_ = label
        endpoint.url_path, endpoint.prefill = url_path, prefill
        endpoint.stream_ends, endpoint.errors = stream_ends, errors
        endpoint.id_headers = ID_HEADERS[: 1 + (errors is ANTHROPIC_ERRORS)]
        return endpoint

    CHAT = "chat_completions", "/v1/chat/completions", COMPLETIONS_PREFILL, DONE
    COMPLETIONS = "completions", "/v1/completions", COMPLETIONS_PREFILL, DONE
    RESPONSES = "responses", "/v1/responses", RESPONSES_PREFILL, RESPONSE_ENDS, RESPONSES_ERRORS
    MESSAGES = "messages", "/v1/messages", MESSAGES_PREFILL, MESSAGE_STOP, ANTHROPIC_ERRORS
    COUNT_TOKENS = "count_tokens", "/v1/messages/count_tokens", None, (), ANTHROPIC_ERRORS
    EMBEDDINGS = "embeddings", "/v1/embeddings"
    TOKENIZE = "tokenize", "/tokenize"
    DETOKENIZE = "detokenize", "/detokenize"

    __hash__ = str.__hash__


class Route(StrEnum):
    """Which workers serve the request."""

    PREFILL_DECODE = "prefill_decode"
    DECODE_ONLY = "decode_only"
    ONE_WORKER = "one_worker"
    """Of either role; nothing is generated."""

    __hash__ = str.__hash__


class Stage(StrEnum):
    """How far a request has come; also where an error or a disconnect is counted."""

    ADMIT = "admit"
    QUEUE = "queue"
    SELECT = "select"
    PREFILL = "prefill"
    DECODE = "decode"
    RELAY = "relay"
    DONE = "done"

    __hash__ = str.__hash__

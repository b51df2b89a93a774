"""The client's body and the two bodies made of it, one for each leg."""

from dataclasses import dataclass

from router.json_members import Member, decode_text, parse_members
from wire.errors import BadRequest, UpstreamError
from wire.handoff import HandoffRequest

KV_TRANSFER_PARAMS = "kv_transfer_params"


class HandoffMissing(UpstreamError):
    """Prefill answered well but kept no blocks for decode, as an engine without tandem's KV connector does."""


# Not carried on the prefill leg, whose one token is thrown away. What shapes the prompt stays, and so does what vLLM
# checks against the vocabulary (logit_bias, bad_words): better refused before the prompt is computed than after.
PREFILL_DROPS = frozenset(
    {
        # how much and how it is sent: the leg has its own
        *("stream", "stream_options", "stream_interval"),
        *("max_tokens", "max_completion_tokens", "min_tokens"),
        # several sequences: one prompt needs one prefill
        *("n", "best_of", "use_beam_search"),
        # costs without use: top-k over the vocabulary, the prompt's ids and text in the answer, a compiled grammar
        *("logprobs", "top_logprobs", "logprob_token_ids", "prompt_logprobs"),
        *("echo", "return_token_ids", "return_tokens_as_token_ids", "return_prompt_text", "return_token_offsets"),
        *("routed_experts_prompt_start", "structured_outputs", "response_format"),
        # could end the leg in another state than "one token made"
        *("stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "repetition_detection"),
        # the leg's own
        KV_TRANSFER_PARAMS,
    }
)


@dataclass(frozen=True, slots=True)
class ClientBody:
    """A JSON object as the client sent it.

    ``raw`` and ``text`` are the same characters; ``members`` are spans of ``text`` by unescaped key.
    """

    raw: bytes
    text: str
    members: dict[str, Member]

    @classmethod
    def parse(cls, raw: bytes) -> "ClientBody":
        """Raises: BadRequest: not a strict JSON object in UTF-8 with distinct keys."""
        text = decode_text(raw)
        return cls(raw, text, parse_members(text))

    def prefill_body(self, handoff: HandoffRequest) -> bytes:
        """Body of the prefill leg: the client's members without ``PREFILL_DROPS``, one token, and the handoff's ask."""
        kept = [self.text[m.start : m.end] for m in self.members.values() if m.key not in PREFILL_DROPS]
        # Without what is not set: workers refuse a field that is newer than they are.
        ask = handoff.model_dump_json(exclude_none=True)
        kept += ['"max_tokens":1', '"stream":false', f'"{KV_TRANSFER_PARAMS}":{ask}']
        return ("{" + ",".join(kept) + "}").encode()

    def decode_body(self, handoff_json: str) -> bytes:
        """Body of the decode leg: the client's own bytes with ``kv_transfer_params`` added as the last member.

        ``handoff_json`` is spliced as it is; the client's body must not hold that key.
        """
        assert KV_TRANSFER_PARAMS not in self.members
        head = self.raw.rstrip(b" \t\r\n")[:-1]
        comma = b"," if self.members else b""
        return b"".join((head, comma, b'"', KV_TRANSFER_PARAMS.encode(), b'":', handoff_json.encode(), b"}"))


def extract_handoff_json(answer: bytes) -> str:
    """The text of ``kv_transfer_params`` in a prefill worker's answer, as it stands there.

    Raises:
        UpstreamError: the answer is not JSON.
        HandoffMissing: it holds no handoff. Going on without one would make decode compute the prompt again, unseen.
    """
    # The answer is not the client's: what is wrong with it is the worker's fault, whatever the parser calls it.
    try:
        text = decode_text(answer)
        members = parse_members(text)
    except BadRequest as error:
        raise UpstreamError("The prefill worker's answer is not JSON.", stage="prefill") from error
    member = members.get(KV_TRANSFER_PARAMS)
    if member is None or member.value is None:
        raise HandoffMissing(
            "The prefill worker answered without kv_transfer_params: its engine runs without tandem's KV connector.",
            stage="prefill",
        )
    return text[member.value_start : member.end]

"""How each API spells an error: as a whole body, as the last event of a stream, and a worker's refusal passed on."""

import json
from typing import Any, Protocol

from router.worker_client import WorkerAnswer
from wire.errors import ServingError

# Anthropic's names; its clients choose the exception by status and show the name. All other 4xx are invalid requests.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_ANTHROPIC_STATUSES = {kind: status for status, kind in _ANTHROPIC_TYPES.items()} | {"invalid_request_error": 400}
REFUSED = "The worker refused the request."
_SEQUENCE_KEY = b'"sequence_number":'


class ErrorShape(Protocol):
    """One API's errors. Nothing here runs for a request that goes well."""

    def whole(self, error: ServingError) -> bytes:
        """The body of an error response."""
        ...

    def last_event(self, error: ServingError, before: bytes) -> bytes:
        """The event that ends a stream early; ``before`` are the last events that were sent."""
        ...

    def of_worker(self, answer: WorkerAnswer) -> bytes:
        """The body for a client whose request a worker refused."""
        ...

    def only_event(self, answer: WorkerAnswer) -> bytes:
        """The same where a stream has begun, but no event of it."""
        ...


class OpenAiErrors:
    """``{"error": {"message", "type", "param", "code"}}``, which is also what vLLM's workers write."""

    def whole(self, error: ServingError) -> bytes:
        return _dump(error.openai_body())

    def last_event(self, error: ServingError, before: bytes) -> bytes:
        return b"data: " + self.whole(error) + b"\n\n"

    def of_worker(self, answer: WorkerAnswer) -> bytes:
        if message_in(answer.body) is not None:
            return answer.body
        # An endpoint that the engine has not is refused by its web framework, in that one's own words.
        kind, message = "invalid_request_error", REFUSED
        if answer.status == 404:
            kind, message = "not_found_error", "The model's workers do not serve this endpoint."
        return _dump({"error": {"message": message, "type": kind, "param": None, "code": answer.status}})

    def only_event(self, answer: WorkerAnswer) -> bytes:
        return b"data: " + _one_line(self.of_worker(answer)) + b"\n\n"


class ResponsesErrors(OpenAiErrors):
    """As above; a stream ends with an ``error`` event.

    Its fields are documented as members of the event. The service that defined the API nests them under ``error``, and
    its Python client raises for that form alone, so they are given in both.
    """

    def last_event(self, error: ServingError, before: bytes) -> bytes:
        return self._event(error.openai_body()["error"], _last_sequence_number(before) + 1)

    def only_event(self, answer: WorkerAnswer) -> bytes:
        fields = {"type": None, "param": None, "code": answer.status}
        return self._event(fields | _error_in(self.of_worker(answer)), 0)

    @staticmethod
    def _event(body: dict[str, Any], sequence_number: int) -> bytes:
        event = {
            "type": "error",
            "code": str(body["code"]),
            "message": body["message"],
            "param": body["param"],
            "sequence_number": sequence_number,
            "error": body,
        }
        return b"event: error\ndata: " + _dump(event) + b"\n\n"


class AnthropicErrors:
    """``{"type": "error", "error": {"type", "message"}}``."""

    def whole(self, error: ServingError) -> bytes:
        return _anthropic(error.status, error.message)

    def last_event(self, error: ServingError, before: bytes) -> bytes:
        return b"event: error\ndata: " + self.whole(error) + b"\n\n"

    def of_worker(self, answer: WorkerAnswer) -> bytes:
        # vLLM answers in either shape, by where it noticed, and with type names of its own.
        return _anthropic(answer.status, message_in(answer.body) or REFUSED)

    def only_event(self, answer: WorkerAnswer) -> bytes:
        return b"event: error\ndata: " + self.of_worker(answer) + b"\n\n"


OPENAI_ERRORS, RESPONSES_ERRORS, ANTHROPIC_ERRORS = OpenAiErrors(), ResponsesErrors(), AnthropicErrors()


def message_in(body: bytes) -> str | None:
    """The message of an error in either shape; None: there is none."""
    error = _error_in(body)
    message = error.get("message")
    return message if isinstance(message, str) and message else None


def status_in(body: bytes) -> int:
    """The HTTP status that an error in either shape stands for; 500 where it says nothing of it."""
    error = _error_in(body)
    code, kind = error.get("code"), error.get("type")
    if isinstance(code, int) and 400 <= code < 600:
        return code
    return _ANTHROPIC_STATUSES.get(kind, 500) if isinstance(kind, str) else 500


def _error_in(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    error = value.get("error") if isinstance(value, dict) else None
    return error if isinstance(error, dict) else {}


def _anthropic(status: int, message: str) -> bytes:
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return _dump({"type": "error", "error": {"type": kind, "message": message}})


def _last_sequence_number(events: bytes) -> int:
    """-1 where no event has one."""
    start = events.rfind(_SEQUENCE_KEY)
    digits = events[start + len(_SEQUENCE_KEY) :].lstrip()[:20].partition(b",")[0].partition(b"}")[0].strip()
    return int(digits) if start >= 0 and digits.isdigit() else -1


def _one_line(json_text: bytes) -> bytes:
    """JSON has line breaks between its tokens only."""
    return json_text.replace(b"\r", b" ").replace(b"\n", b" ").strip()


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()

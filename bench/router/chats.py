"""Chat requests and answers, built ahead: what travels differs from one exchange to the next by a tag alone. Pure.

A tag is eight digits. It stands in the prompt, comes back in each part of the answer, and so tells a mixed-up answer
from the right one; as prompts differ by it, a router's prefix cache sees new prompts as it would in service.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MODEL = "mock"
TAG_DIGITS = 8
TAG_MARK = b"Request "
PROMPT_END = b" End of the request."
_TAG_SLOT = "#" * TAG_DIGITS
_SYSTEM = "You are a helpful assistant. Answer in one short paragraph."
_SENTENCE = "Please tell me how a request finds its way through a serving system. "
_ANSWER = "The router picks a worker for the prompt and another for the answer, and hands the cache over. " * 3
_TOKEN = " token"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Template:
    """Bytes with one kind of gap, to be filled with a tag."""

    parts: tuple[bytes, ...]

    @classmethod
    def of(cls, text: str) -> "Template":
        return cls(tuple(part.encode() for part in text.split(_TAG_SLOT)))

    def filled(self, tag: bytes) -> bytes:
        return tag.join(self.parts)


def make_tag(number: int) -> bytes:
    """The tag of the ``number``-th request; numbers past eight digits start again."""
    return b"%0*d" % (TAG_DIGITS, number % 10**TAG_DIGITS)


@dataclass(frozen=True, slots=True)
class Found:
    """A request's body as a mock engine reads it; ``rest`` is what stands around the prompt."""

    tag: bytes
    prompt_bytes: int
    rest: bytes


def find_prompt(body: bytes) -> Found | None:
    """Look into a request's body, however a router has spelled the JSON around the prompt; None: it is not of ours.

    Costs a search and not a parse, so that large bodies are no work for the mock.
    """
    start, end = body.find(TAG_MARK), body.rfind(PROMPT_END)
    if not 0 <= start < end:
        return None
    tag = body[start + len(TAG_MARK) : start + len(TAG_MARK) + TAG_DIGITS]
    return Found(tag, end - start, body[:start] + body[end:]) if len(tag) == TAG_DIGITS and tag.isdigit() else None


def request_body(*, prompt_bytes: int, max_tokens: int, is_stream: bool) -> Template:
    """A chat request with a prompt of about ``prompt_bytes``, its keys in the order that clients' libraries have."""
    start = f"{TAG_MARK.decode()}{_TAG_SLOT}: "
    num_sentences = max(1, (prompt_bytes - len(start) - len(PROMPT_END)) // len(_SENTENCE))
    prompt = start + _SENTENCE * num_sentences + PROMPT_END.decode()
    body: dict[str, Any] = {
        "messages": [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": prompt}],
        "model": MODEL,
        "max_tokens": max_tokens,
        "stream": is_stream,
        "temperature": 0.7,
    }
    if is_stream:
        body["stream_options"] = {"include_usage": True}
    return Template.of(_dump(body))


def whole_answer(max_tokens: int) -> Template:
    """An answer in one piece of JSON, as vLLM spells it."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": f"Answer {_TAG_SLOT}: {_ANSWER}",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [],
        "reasoning": None,
    }
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    return Template.of(_dump(_frame("chat.completion", [choice], usage=_usage(max_tokens))))


def prefill_answer() -> tuple[Template, bytes]:
    """An answer of one token up to the value of ``kv_transfer_params``, and what follows that value."""
    message = {"role": "assistant", "content": _TOKEN, "tool_calls": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    text = _dump(_frame("chat.completion", [choice], usage=_usage(1)) | {"kv_transfer_params": 0})
    return Template.of(text[:-2]), text[-1:].encode()


def stream_pieces(num_tokens: int) -> list[Template]:
    """The body of a streamed answer, one piece a token; the last holds the usage and the end as well."""
    pieces = []
    for index in range(num_tokens):
        is_last = index == num_tokens - 1
        events = [_event([_delta({"content": _TOKEN}, "length" if is_last else None)])]
        if index == 0:
            events.insert(0, _event([_delta({"role": "assistant", "content": ""}, None)]))
        if is_last:
            events += [_event([], usage=_usage(num_tokens)), DONE.decode()]
        pieces.append(Template.of("".join(events)))
    return pieces


def whole_stream(num_tokens: int) -> Template:
    """The body of a streamed answer in one."""
    return Template.of("".join(piece.filled(_TAG_SLOT.encode()).decode() for piece in stream_pieces(num_tokens)))


def _delta(delta: Mapping[str, str], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish_reason, "token_ids": None}


def _event(choices: list[dict[str, Any]], **more: Any) -> str:
    return f"data: {_dump(_frame('chat.completion.chunk', choices, **more))}\n\n"


def _frame(kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    ends = {"id": f"chatcmpl-{_TAG_SLOT}", "object": kind, "created": 1_790_000_000, "model": MODEL}
    return {**ends, "choices": choices, **more}


def _usage(num_tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": 96, "total_tokens": 96 + num_tokens, "completion_tokens": num_tokens}


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))

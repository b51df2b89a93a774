"""The five loads of must-2. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from bench.router.chats import Template, request_body, whole_answer, whole_stream


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load.

    With ``rate_rps`` requests start at that rate, whether or not earlier ones have ended; without it,
    ``concurrency`` clients each send their next request when the last has ended.
    """

    name: str
    about: str
    prompt_bytes: int
    max_tokens: int
    is_stream: bool
    concurrency: int
    """Connections; on a paced load, more than are ever in use at once."""
    rate_rps: float | None = None

    def answer(self) -> Template:
        """What a client has to get, byte for byte."""
        return whole_stream(self.max_tokens) if self.is_stream else whole_answer(self.max_tokens)

    def body(self) -> Template:
        return request_body(prompt_bytes=self.prompt_bytes, max_tokens=self.max_tokens, is_stream=self.is_stream)


SMALL_PROMPT_BYTES = 400
CASES = {
    case.name: case
    for case in (
        Case("small32", "small chat, 32 clients", SMALL_PROMPT_BYTES, 16, False, 32),
        Case("small128", "small chat, 128 clients", SMALL_PROMPT_BYTES, 16, False, 128),
        # 100 tokens, so that the request's own cost is a small part of what is counted by token.
        Case("stream", "streams of 100 tokens, 32 clients", SMALL_PROMPT_BYTES, 100, True, 32),
        Case("big", "200 KB bodies, 8 clients", 200_000, 16, False, 8),
        Case("paced", "100 requests/s, streams of 8 tokens", SMALL_PROMPT_BYTES, 8, True, 64, rate_rps=100.0),
    )
}


def named(names: Iterable[str]) -> list[Case]:
    """Cases by name. Raises: ValueError: there is none of that name."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise ValueError(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    return [CASES[name] for name in names]

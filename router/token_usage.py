"""How many tokens an answer took, by its own word: the last ``usage`` of a whole answer, or of a stream's last events.

Only the end is looked at: an answer is relayed as bytes, and its ``usage`` comes last in every API's last frames.
"""

import json
from typing import NamedTuple

_KEY = b'"usage":'
_decoder = json.JSONDecoder()


class TokenUsage(NamedTuple):
    """Tokens of one request."""

    prompt: int
    output: int


def read_usage(end: bytes) -> TokenUsage | None:
    """What the last ``usage`` in the last bytes of an answer says; None: there is none to be understood.

    Names are those of OpenAI's chat and completions, or of its responses and of Anthropic's messages.
    """
    at = end.rfind(_KEY)
    if at < 0:
        return None
    try:
        usage, _ = _decoder.raw_decode(end[at + len(_KEY) :].decode().lstrip())
    except ValueError:
        return None
    if not isinstance(usage, dict):
        return None
    prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0))
    output = usage.get("completion_tokens", usage.get("output_tokens", 0))
    return TokenUsage(prompt, output) if type(prompt) is type(output) is int else None

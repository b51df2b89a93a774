"""What two requests must have in common for one worker's prefix cache to serve both: the start of a conversation."""

from hashlib import blake2b
from typing import Any

from router.body import ClientBody

# Two blocks of 128 tokens at 4 bytes a token: conversations that agree so far are mostly one and the same.
PREFIX_CHARS = 1024
DIGEST_BYTES = 8
# Where the prompt is, by endpoint.
_PROMPT_FIELDS = ("messages", "prompt", "input")
_SYSTEM_ROLES = ("system", "developer")


def prefix_digest(body: ClientBody) -> bytes:
    """Of the first ``PREFIX_CHARS`` characters of the prompt, after the system prompt; the same in every process.

    Of a chat, the first message that is no system prompt, and nothing behind it: later turns of a conversation repeat
    that message, and must come out the same. The system prompt itself is left out, as all conversations of an
    application share it: with it they would all go to one worker, without it each worker holds that prompt once. It
    counts where there is nothing else. Of a completion, the prompt.
    """
    prompt = next((body.members[name].value for name in _PROMPT_FIELDS if name in body.members), "")
    return blake2b(_text(prompt).encode(), digest_size=DIGEST_BYTES).digest()


def _text(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt[:PREFIX_CHARS]
    if not isinstance(prompt, list):
        return ""
    messages = [item for item in prompt[:PREFIX_CHARS] if isinstance(item, dict)]
    if messages:
        own = [message for message in messages if message.get("role") not in _SYSTEM_ROLES]
        return _text(_content((own or messages)[0]))
    # Token ids; not more of them than there would be characters.
    return " ".join(map(str, prompt[:PREFIX_CHARS]))


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""

"""The model takes text only: finds images, audio, video and files in a conversation, in the spelling of each API."""

from typing import Any

from wire.errors import BadRequest

MEDIA_KEYS = frozenset(
    {
        *("image_url", "image_pil", "image_embeds", "input_image", "image"),
        *("audio_url", "input_audio", "audio_embeds", "audio"),
        *("video_url", "input_video", "video_embeds", "video"),
        *("file", "input_file"),
    }
)


def check_text_only(parts: list[Any], field: str) -> None:
    """Raises: BadRequest: one of a message's parts is not text; names ``field``."""
    if any(_is_media(part) for part in parts):
        raise BadRequest("This model takes text only: no images, audio, video or files.", param=field)


def _is_media(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    return (isinstance(kind, str) and kind in MEDIA_KEYS) or not MEDIA_KEYS.isdisjoint(part)

"""How a value that can't be served is refused: by its key, with the value and what is allowed. Pure."""

from typing import NoReturn, TypeGuard

MAX_SHOWN, MAX_TEXT = 80, 400


def require(holds: bool, key: str, value: object, wanted: str) -> None:
    """Raise ValueError, naming ``key``, unless ``holds``."""
    if not holds:
        refuse(key, value, wanted)


def refuse(key: str, value: object, wanted: str) -> NoReturn:
    """Raise ValueError that says which ``key`` has which ``value``, and what it must be."""
    raise ValueError(f"{key}={shown(value)} can't be served: it must be {wanted}")


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number as JSON means it: neither 2.0 nor true."""
    return isinstance(value, int) and not isinstance(value, bool)


def printable(text: str) -> str:
    """``text`` as any terminal and any log can have it: names of others' files may hold line ends, escape sequences or
    halves of characters, and be of any length.
    """
    text = text if text.isascii() and text.isprintable() else ascii(text)[1:-1]
    return _cut(text, MAX_TEXT)


def shown(value: object) -> str:
    """``value`` as Python writes it, cut off where a line ends to be one."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        return "a number of thousands of digits"
    return _cut(text, MAX_SHOWN)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."

"""Clients' API keys as they are written down: ``KEY``, or ``NAME:KEY`` to have its use counted under a name.

A file has one a line; blank lines and lines that begin with ``#`` are skipped. Several keys may share a name, as while
one replaces another: together they are one client. A key without a name goes by its place, ``key-1`` being the first.
Messages tell places, never keys.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PLACE = re.compile(r"key-[0-9]+")
# What a header can hold between two spaces, but for the comma, which parts keys in the environment. No colon is in a
# bearer token (RFC 6750), so the first one always ends a name.
KEY = re.compile(r"[!-+\--9;-~]+")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key, and under which name it is counted."""

    name: str
    secret: bytes = field(repr=False)


def parse_key(text: str) -> tuple[str, bytes]:
    """Name (empty: none was given) and key.

    Raises:
        ValueError: not of this form; does not quote the text.
    """
    name, colon, key = text.rpartition(":")
    if not KEY.fullmatch(key):
        raise ValueError("a key must be visible ASCII without commas and colons, written KEY or NAME:KEY")
    if colon and not NAME.fullmatch(name):
        raise ValueError("a key's name must be up to 64 of A-Z a-z 0-9 . _ - and begin with a letter or a digit")
    if PLACE.fullmatch(name):
        raise ValueError("names like key-1 are for keys without a name")
    return name, key.encode()


def name_keys(texts: Iterable[str]) -> tuple[ApiKey, ...]:
    """The keys in their order, each with a name.

    Raises:
        ValueError: one is not a key, or is there twice; tells its place.
    """
    keys: dict[bytes, ApiKey] = {}
    for place, text in enumerate(texts, start=1):
        try:
            name, secret = parse_key(text)
        except ValueError as error:
            raise ValueError(f"key {place}: {error}") from None
        if secret in keys:
            raise ValueError(f"key {place} is there already")
        keys[secret] = ApiKey(name or f"key-{place}", secret)
    return tuple(keys.values())


def read_key_file(file: Path) -> list[str]:
    """The keys of a file, as they are written there.

    Raises:
        ValueError: it can't be read or holds no key; an empty file would open the door to everyone.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8") from None
    keys = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    if not keys:
        raise ValueError(f"{file} holds no key")
    return keys

"""Finds the top-level members of a JSON object as spans of text, so that they can be cut and spliced.

Values are decoded by the C scanner of the standard library for checking; what travels on is always the client's own
text. Nested JSON is never encoded again: key order, number spelling and escapes reach the worker as they were sent.
"""

import json
import re
from collections.abc import Iterable
from json import JSONDecodeError
from typing import Any, NamedTuple, NoReturn

from wire.errors import BadRequest

# JSON schemas in tools nest to some 30; pydantic's and Jinja's own limits in the workers lie at 200 and above.
MAX_DEPTH = 128

_WHITESPACE = re.compile(r"[ \t\n\r]*")
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class Member(NamedTuple):
    """One ``"key": value`` of the top-level object; spans are character offsets into its text."""

    key: str
    """The key after unescaping."""
    value: Any
    """The decoded value, for checks only."""
    start: int
    """Where the key's opening quote is."""
    value_start: int
    end: int
    """One past the value."""


def _refuse_constant(name: str) -> NoReturn:
    raise BadRequest(f"The body is not valid JSON: {name} is not a JSON number.")


_decode_at = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode


def decode_text(raw: bytes) -> str:
    """Raises: BadRequest: empty, or not UTF-8."""
    if not raw.strip(b" \t\r\n"):
        raise BadRequest("The request body is empty.")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not valid UTF-8 (byte {error.start}).") from None


def parse_members(text: str) -> dict[str, Member]:
    """The members of the JSON object ``text``, by unescaped key, in the order of the text.

    Raises:
        BadRequest: not an object, not strict JSON, a duplicate key (named in ``param``), nested deeper than
            ``MAX_DEPTH``, or text that is not Unicode (lone surrogates).
    """
    try:
        members = _scan_object(text)
    except JSONDecodeError as error:
        raise BadRequest(f"The body is not valid JSON: {error.msg} (character {error.pos}).") from None
    except RecursionError:
        raise BadRequest(f"The body is nested deeper than {MAX_DEPTH} levels.") from None
    except ValueError:
        # The interpreter's limit on the digits of an integer.
        raise BadRequest("The body is not usable JSON: a number has too many digits.") from None
    _check_depth(text, members)
    _check_unicode(text, members)
    return members


def _scan_object(text: str) -> dict[str, Member]:
    skip = _WHITESPACE.match
    at = _end(skip(text, 0))
    if text[at : at + 1] != "{":
        raise JSONDecodeError("expected an object", text, at)
    members: dict[str, Member] = {}
    at = _end(skip(text, at + 1))
    is_open = text[at : at + 1] != "}"
    while is_open:
        member = _scan_member(text, at)
        if member.key in members:
            raise BadRequest(f"The key `{member.key[:64]}` appears twice.", param=member.key[:64])
        members[member.key] = member
        at = _end(skip(text, member.end))
        if text[at : at + 1] not in (",", "}"):
            raise JSONDecodeError("expected ',' or '}'", text, at)
        is_open = text[at] == ","
        if is_open:
            at = _end(skip(text, at + 1))
    at = _end(skip(text, at + 1))
    if at != len(text):
        raise JSONDecodeError("data after the object", text, at)
    return members


def _scan_member(text: str, start: int) -> Member:
    if text[start : start + 1] != '"':
        raise JSONDecodeError("expected a key in double quotes", text, start)
    key, after_key = _decode_at(text, start)
    colon = _COLON.match(text, after_key)
    if colon is None:
        raise JSONDecodeError("expected ':'", text, _end(_WHITESPACE.match(text, after_key)))
    value_start = colon.end()
    value, end = _decode_at(text, value_start)
    return Member(key, value, start, value_start, end)


def _end(match: re.Match[str] | None) -> int:
    assert match is not None  # the pattern matches the empty string
    return match.end()


def _check_depth(text: str, members: dict[str, Member]) -> None:
    # Counting brackets runs at memory speed and clears nearly all bodies; only then are containers walked.
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth, level = 1, _containers(member.value for member in members.values())
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise BadRequest(f"The body is nested deeper than {MAX_DEPTH} levels.")
        level = _containers(item for value in level for item in (value.values() if isinstance(value, dict) else value))


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list)]


def _check_unicode(text: str, members: dict[str, Member]) -> None:
    # Decoded UTF-8 holds no surrogate, so only an escape can make one; escaped pairs are fine.
    if _SURROGATE_ESCAPE.search(text) is None:
        return
    for member in members.values():
        try:
            member.key.encode()
            json.dumps(member.value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise BadRequest("The body holds a lone surrogate, which is not text.") from None

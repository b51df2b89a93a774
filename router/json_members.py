"""Finds the top-level members of a JSON object as spans of text, so that they can be cut and spliced.

Values are decoded by the C scanner of the standard library for checking; what travels on is always the client's own
text. Nested JSON is never encoded again: key order, number spelling and escapes reach the worker as they were sent.
"""

import json
import re
from collections.abc import Callable
from json import JSONDecodeError
from json.scanner import make_scanner
from typing import Any, NamedTuple, NoReturn, cast

from wire.errors import BadRequest

# JSON schemas in tools nest to some 30; pydantic's and Jinja's own limits in the workers lie at 200 and above.
MAX_DEPTH = 128
COUNTED_CHARS = 16 << 10
_CONTAINERS = frozenset((list, dict))

_OPENING = re.compile(r"[ \t\n\r]*\{")
_CLOSING = re.compile(r"[ \t\n\r]*\}")
# A key without escapes, as nearly all are, and what stands around it; and the start of one with escapes.
_PLAIN_KEY = re.compile(r'[ \t\n\r]*"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*')
_NEXT_PLAIN_KEY = re.compile(rf"[ \t\n\r]*,{_PLAIN_KEY.pattern}")
_ANY_KEY = re.compile(r'[ \t\n\r]*(?=")')
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_AFTER_VALUE = re.compile(r"[ \t\n\r]*([,}])")
_REST = re.compile(r"[ \t\n\r]*\Z")
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


# ``Member(...)`` goes through a function in Python; four of them in a small request are felt.
_new_member: Callable[[type[Member], tuple[str, Any, int, int, int]], Member] = cast("Any", tuple.__new__)


def _refuse_constant(name: str) -> NoReturn:
    raise BadRequest(f"The body is not valid JSON: {name} is not a JSON number.")


# The C scanner below ``raw_decode``: the same, but for StopIteration where there is no value.
_scan_value: Callable[[str, int], tuple[Any, int]] = make_scanner(
    cast("Any", json.JSONDecoder(parse_constant=_refuse_constant))
)


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
    # Up to some size counting is cheaper than walking, and clears nearly all.
    if len(text) > COUNTED_CHARS or text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(members)
    _check_unicode(text, members)
    return members


def _scan_object(text: str) -> dict[str, Member]:
    opening = _OPENING.match(text)
    if opening is None:
        raise JSONDecodeError("expected an object", text, 0)
    members: dict[str, Member] = {}
    at = opening.end()
    closing = _CLOSING.match(text, at)
    plain = _PLAIN_KEY.match(text, at)
    while closing is None:
        if plain is not None:
            key, start, value_start = plain[1], plain.start(1) - 1, plain.end()
        else:
            key, start, value_start = _scan_key(text, at)
        try:
            value, end = _scan_value(text, value_start)
        except StopIteration:
            raise JSONDecodeError("expected a value", text, value_start) from None
        if key in members:
            raise BadRequest(f"The key `{key[:64]}` appears twice.", param=key[:64])
        members[key] = _new_member(Member, (key, value, start, value_start, end))
        plain = _NEXT_PLAIN_KEY.match(text, end)
        if plain is None:
            after = _AFTER_VALUE.match(text, end)
            if after is None:
                raise JSONDecodeError("expected ',' or '}'", text, end)
            at = after.end()
            closing = after if after[1] == "}" else None
    if _REST.match(text, closing.end()) is None:
        raise JSONDecodeError("data after the object", text, closing.end())
    return members


def _scan_key(text: str, at: int) -> tuple[str, int, int]:
    """The key with escapes at ``at``, unescaped; where its opening quote is; where its value starts."""
    quote = _ANY_KEY.match(text, at)
    if quote is None:
        raise JSONDecodeError("expected a key in double quotes", text, at)
    key, end = _scan_value(text, quote.end())
    colon = _COLON.match(text, end)
    if colon is None:
        raise JSONDecodeError("expected ':'", text, end)
    return key, quote.end(), colon.end()


def _check_depth(members: dict[str, Member]) -> None:
    depth, level = 1, [member.value for member in members.values() if type(member.value) in _CONTAINERS]
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise BadRequest(f"The body is nested deeper than {MAX_DEPTH} levels.")
        below: list[Any] = []
        for value in level:
            items = value.values() if type(value) is dict else value
            # Runs at the interpreter's own speed, which matters for a prompt of a hundred thousand token ids.
            if not _CONTAINERS.isdisjoint(map(type, items)):
                below += [item for item in items if type(item) in _CONTAINERS]
        level = below


def _check_unicode(text: str, members: dict[str, Member]) -> None:
    # Decoded UTF-8 holds no surrogate, so only an escape can make one; escaped pairs are fine. One character is found
    # many times faster than a pattern.
    if "\\" not in text or _SURROGATE_ESCAPE.search(text) is None:
        return
    for member in members.values():
        try:
            member.key.encode()
            json.dumps(member.value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise BadRequest("The body holds a lone surrogate, which is not text.") from None

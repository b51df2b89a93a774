"""The client's body and the two bodies made of it, one for each leg."""

import json
import re
from typing import Any, NamedTuple

from router.json_members import Member, decode_text, parse_members
from router.worker_client import Piece
from wire.errors import BadRequest, UpstreamError

KV_TRANSFER_PARAMS = "kv_transfer_params"
_QUOTED_KEY = f'"{KV_TRANSFER_PARAMS}"'
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_decoder = json.JSONDecoder()


class HandoffMissing(UpstreamError):
    """Prefill answered well but kept no blocks for decode, as an engine without tandem's KV connector does."""


class PrefillRules(NamedTuple):
    """How an API's body becomes that of a leg that makes one token."""

    limit_field: str
    """The API's name for the limit on output tokens."""
    drops: frozenset[str]
    """Fields that are not carried, the limit's own name among them."""


class ClientBody(NamedTuple):
    """A JSON object as the client sent it.

    ``raw`` and ``text`` are the same characters; ``members`` are spans of ``text`` by unescaped key. The bodies made of
    it are pieces: views of ``raw`` where they can be, since copying a long prompt costs more than all the rest.
    """

    raw: bytes
    text: str
    members: dict[str, Member]

    @classmethod
    def parse(cls, raw: bytes) -> "ClientBody":
        """Raises: BadRequest: not a strict JSON object in UTF-8 with distinct keys."""
        text = decode_text(raw)
        return cls(raw, text, parse_members(text))

    def prefill_body(self, ask_json: str, rules: PrefillRules) -> list[Piece]:
        """Body of the prefill leg: the client's members without those dropped, one token, and the handoff's ask."""
        limit_field, drops = rules
        pieces: list[Piece] = [b"{"]
        start, end = -1, 0
        for member in self.members.values():
            if member.key not in drops:
                start, end = member.start if start < 0 else start, member.end
            elif start >= 0:
                pieces += (self._cut(start, end), b",")
                start = -1
        if start >= 0:
            pieces += (self._cut(start, end), b",")
        pieces.append(f'"{limit_field}":1,"stream":false,"{KV_TRANSFER_PARAMS}":{ask_json}}}'.encode())
        return pieces

    def decode_body(self, handoff_json: str) -> list[Piece]:
        """Body of the decode leg: the client's own bytes with ``kv_transfer_params`` added as the last member.

        ``handoff_json`` is spliced as it is; the client's body must not hold that key.
        """
        assert KV_TRANSFER_PARAMS not in self.members
        comma = "," if self.members else ""
        added = f'{comma}"{KV_TRANSFER_PARAMS}":{handoff_json}}}'.encode()
        return [memoryview(self.raw)[: self.raw.rindex(b"}")], added]

    def _cut(self, start: int, end: int) -> Piece:
        """The bytes of ``text[start:end]``."""
        if len(self.raw) == len(self.text):  # all ASCII, so characters are bytes
            return memoryview(self.raw)[start:end]
        return self.text[start:end].encode()


def extract_handoff(answer: bytes) -> tuple[str, dict[str, Any]]:
    """``kv_transfer_params`` in a prefill worker's answer: its text as it stands there, and what that says.

    Raises:
        UpstreamError: the answer is not JSON.
        HandoffMissing: it holds no handoff. Going on without one would make decode compute the prompt again, unseen.
    """
    # The answer is not the client's: what is wrong with it is the worker's fault, whatever the parser calls it.
    try:
        text = decode_text(answer)
        member = _find_last(text) or parse_members(text).get(KV_TRANSFER_PARAMS)
    except BadRequest as error:
        raise UpstreamError("The prefill worker's answer is not JSON.", stage="prefill") from error
    if member is None or not isinstance(member.value, dict):
        raise HandoffMissing(
            "The prefill worker answered without kv_transfer_params: its engine runs without a KV connector for P/D.",
            stage="prefill",
        )
    return text[member.value_start : member.end], member.value


def _find_last(text: str) -> Member | None:
    """The member where vLLM writes it, found without reading all before it; None: look properly.

    A quote inside a string is escaped, so that the key with both its quotes and a colon is never part of one.
    """
    start = text.rfind(_QUOTED_KEY)
    colon = _COLON.match(text, start + len(_QUOTED_KEY)) if start >= 0 else None
    if colon is None:
        return None
    try:
        value, end = _decoder.raw_decode(text, colon.end())
    except ValueError:
        return None
    return Member(KV_TRANSFER_PARAMS, value, start, colon.end(), end)

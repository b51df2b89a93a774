"""How workers want to be asked for a handoff, and what theirs look like: tandem's own, and stock vLLM's NixlConnector.

Which of the two a registered worker speaks is its registration's word (tandem's); a static one is asked (``health``).
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from wire.errors import UpstreamError
from wire.handoff import handoff_request_json
from wire.versions import HISTORY

STAGE = "prefill"


class Dialect(Protocol):
    """One connector's way with ``kv_transfer_params``."""

    name: str
    has_readers: bool
    """Whether one handoff may be read by several sequences (``n`` above 1)."""

    def ask(self, handoff_id: str, num_readers: int) -> str:
        """JSON of ``kv_transfer_params`` for the prefill leg."""
        ...

    def check(self, handoff: Mapping[str, Any], handoff_id: str, num_readers: int) -> int:
        """The number of blocks of a handoff that answers exactly this ask.

        What decode checks itself is not checked here.

        Raises:
            UpstreamError: it is another, or unusable.
        """
        ...


class TandemDialect:
    """Handoffs of ``wire.handoff``: signed, with an id of the router's choice, released by that id."""

    name = "tandem"
    has_readers = True

    def ask(self, handoff_id: str, num_readers: int) -> str:
        return handoff_request_json(handoff_id, num_readers)

    def check(self, handoff: Mapping[str, Any], handoff_id: str, num_readers: int) -> int:
        # Whether decode reads that version was asked when the two were paired.
        version = handoff.get("wire_version")
        if not isinstance(version, int) or version not in HISTORY:
            raise UpstreamError("The prefill worker speaks another wire version.", stage=STAGE)
        if (handoff.get("handoff_id"), handoff.get("num_readers")) != (handoff_id, num_readers):
            raise UpstreamError("The prefill worker answered with another handoff.", stage=STAGE)
        blocks = handoff.get("remote_block_ids")
        if not isinstance(blocks, list) or not blocks:
            raise UpstreamError("The prefill worker's handoff is malformed: remote_block_ids.", stage=STAGE)
        return len(blocks)


class NixlDialect:
    """vLLM's own NixlConnector. Its handoffs name no id of ours; one is given back by a request that decode refuses.

    Its engines trust what they are told to read (a missing field ends the process), so all of it is checked here.
    """

    name = "nixl"
    has_readers = False

    def ask(self, handoff_id: str, num_readers: int) -> str:
        del handoff_id, num_readers
        return (
            '{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
            '"remote_host":null,"remote_port":null}'
        )

    def check(self, handoff: Mapping[str, Any], handoff_id: str, num_readers: int) -> int:
        del handoff_id, num_readers
        for name, kind in _NIXL_FIELDS.items():
            value = handoff.get(name)
            if not isinstance(value, kind) or not value:
                raise UpstreamError(f"The prefill worker's handoff is malformed: {name}.", stage=STAGE)
        blocks = handoff["remote_block_ids"]
        # One list for each group of layers that share their blocks, or one list for all.
        groups = blocks if all(isinstance(group, list) for group in blocks) else [blocks]
        if not all(isinstance(block, int) for group in groups for block in group):
            raise UpstreamError("The prefill worker's handoff is malformed: remote_block_ids.", stage=STAGE)
        return max(map(len, groups))


_NIXL_FIELDS: dict[str, type] = {
    "do_remote_prefill": bool,
    "remote_engine_id": str,
    "remote_request_id": str,
    "remote_host": str,
    "remote_port": int,
    "remote_block_ids": list,
}
TANDEM: Dialect = TandemDialect()
NIXL: Dialect = NixlDialect()


def nixl_release_body(handoff_json: str) -> bytes:
    """A completion that every vLLM refuses, having first told prefill that this handoff will not be read.

    vLLM cleans up after any request that it refuses before its engine sees it; this one asks for a model without a
    name that a server could have.
    """
    refused = json.dumps({"model": "tandem/no-such-model", "prompt": "x", "max_tokens": 1})
    return f'{refused[:-1]},"kv_transfer_params":{handoff_json}}}'.encode()

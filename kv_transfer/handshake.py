"""What one rank tells a peer about its rows, and whether two ranks fit. The bytes travel over the side channel."""

from typing import Literal

import msgspec

from kv_transfer.layout import RowLayout
from wire.errors import HandshakeMismatch
from wire.handoff import WIRE_VERSION


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's rows: identity, geometry, address and NIXL metadata."""

    wire_version: int = WIRE_VERSION
    engine_id: str
    tp_size: int
    tp_rank: int
    block_size: int
    layout: RowLayout
    num_blocks: int
    base_address: int
    device_id: int
    memory: Literal["DRAM", "VRAM"]
    agent_metadata: bytes


def encode(hello: Hello) -> bytes:
    return msgspec.msgpack.encode(hello)


def decode(payload: bytes) -> Hello:
    """Raises HandshakeMismatch when the bytes are no hello of a version that we know."""
    try:
        return msgspec.msgpack.decode(payload, type=Hello)
    except (msgspec.DecodeError, msgspec.ValidationError) as e:
        raise HandshakeMismatch(f"the peer's hello can't be read: {e}") from e


def encode_all(hellos: list[bytes]) -> bytes:
    """The reply of an engine: the hellos of its ranks, rank 0 first."""
    return msgspec.msgpack.encode(hellos)


def decode_all(payload: bytes) -> list[Hello]:
    try:
        parts = msgspec.msgpack.decode(payload, type=list[bytes])
    except (msgspec.DecodeError, msgspec.ValidationError) as e:
        raise HandshakeMismatch(f"the peer's answer is no list of hellos: {e}") from e
    return [decode(part) for part in parts]


def check_peer(mine: Hello, theirs: Hello, *, engine_id: str) -> None:
    """Refuse a peer whose rows can't be read into ours.

    Args:
        mine: this rank.
        theirs: the rank that would be read.
        engine_id: the engine that the handoff names; a restarted peer has another one and is refused.

    Raises:
        HandshakeMismatch: names the first property that differs, with both sides' values.
    """
    if theirs.engine_id != engine_id:
        raise HandshakeMismatch(f"the handoff names engine {engine_id}, but {theirs.engine_id} answers at its address")
    for name in ("wire_version", "tp_size", "tp_rank", "block_size", "memory", "layout"):
        a, b = getattr(mine, name), getattr(theirs, name)
        if a != b:
            raise HandshakeMismatch(f"{name} differs: {b} on prefill, {a} on decode")

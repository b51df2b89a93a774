"""What an engine tells a peer about itself and its ranks' rows, and whether two engines fit.

The answer has three shells, each opened only when the one around it fits::

    wire version, greeting          any version can read the number
        engine id, fingerprint      compared by name before anything below is looked at
            one hello a rank        rows, addresses, NIXL metadata
"""

from typing import Literal

import msgspec

from kv_transfer.layout import RowLayout
from wire.errors import HandshakeMismatch
from wire.versions import HISTORY, WIRE_VERSION, may_pair


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's rows: geometry, addresses (bytes) and NIXL metadata."""

    tp_rank: int
    layout: RowLayout
    num_blocks: int
    base_address: int
    device_id: int
    memory: Literal["DRAM", "VRAM"]
    fence_address: int
    num_fence_words: int
    agent_metadata: bytes


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """One engine. ``hellos`` are encoded, rank 0 first."""

    engine_id: str
    fingerprint: dict[str, str]
    num_kv_heads: int
    hellos: list[bytes]


def encode_hello(hello: Hello) -> bytes:
    return msgspec.msgpack.encode(hello)


def decode_hello(payload: bytes) -> Hello:
    """Raises HandshakeMismatch when the bytes are no hello of this version."""
    try:
        return msgspec.msgpack.decode(payload, type=Hello)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as e:
        raise HandshakeMismatch(f"the peer's hello can't be read: {e}") from e


def encode_greeting(greeting: Greeting) -> bytes:
    return msgspec.msgpack.encode((WIRE_VERSION, msgspec.msgpack.encode(greeting)))


def decode_greeting(payload: bytes) -> Greeting:
    """Open a prefill engine's answer as a decode engine.

    Raises:
        HandshakeMismatch: no answer of this protocol, or of a wire version that this engine does not read.
    """
    try:
        version, inner = msgspec.msgpack.decode(payload, type=tuple[int, bytes])
        if not may_pair(version, WIRE_VERSION):
            raise HandshakeMismatch(f"wire version differs: {version} on prefill, {WIRE_VERSION} on decode")
        return msgspec.msgpack.decode(inner, type=Greeting)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as e:
        raise HandshakeMismatch(f"the peer's answer is no greeting of wire versions {sorted(HISTORY)}: {e}") from e

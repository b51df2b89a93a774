"""A peer's answer is opened shell by shell; whatever the bytes, the only error is a named mismatch."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer import handshake
from kv_transfer.layout import Page, RowLayout
from tests.unit.kv_transfer.factories import ENGINE, FINGERPRINT
from wire.errors import HandshakeMismatch
from wire.versions import WIRE_VERSION

PAGES = [Page("kv_pool", 0, 1152, True, 2), Page("index_pool", 1152, 288, False)]
HELLO = handshake.Hello(
    tp_rank=1,
    layout=RowLayout.from_pages(PAGES, 1440),
    num_blocks=9,
    base_address=(1 << 63) + 8,
    device_id=0,
    memory="DRAM",
    fence_address=1 << 40,
    num_fence_words=1 << 16,
    agent_metadata=b"\x00nixl\xff",
)
GREETING = handshake.Greeting(
    engine_id=ENGINE, fingerprint=FINGERPRINT, num_kv_heads=4, hellos=[handshake.encode_hello(HELLO), b"not looked at"]
)
ENCODED = handshake.encode_greeting(GREETING)


def shell(version: object, inner: object) -> bytes:
    return msgspec.msgpack.encode((version, inner))


def test_a_hello_survives_the_wire() -> None:
    assert handshake.decode_hello(handshake.encode_hello(HELLO)) == HELLO


def test_a_greeting_survives_the_wire_and_its_hellos_stay_closed() -> None:
    assert handshake.decode_greeting(ENCODED) == GREETING


@pytest.mark.parametrize("version", [1, WIRE_VERSION + 1, 0, -1])
def test_another_version_is_named_before_anything_inside_is_opened(version: int) -> None:
    with pytest.raises(HandshakeMismatch, match=rf"wire version differs: {version} on prefill, {WIRE_VERSION} on dec"):
        handshake.decode_greeting(shell(version, b"\xc1 what a later version may put here"))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"nonsense",
        b"\xc1" * 9,
        msgspec.msgpack.encode({"engine_id": 1}),
        shell("2", b""),
        shell(WIRE_VERSION, "text"),
        shell(WIRE_VERSION, b""),
        shell(WIRE_VERSION, msgspec.msgpack.encode({"engine_id": ENGINE})),
        shell(WIRE_VERSION, msgspec.msgpack.encode({"engine_id": b"\xff"})),
        msgspec.msgpack.encode((WIRE_VERSION, b"", b"more")),
    ],
)
def test_what_is_no_greeting_is_refused(payload: bytes) -> None:
    with pytest.raises(HandshakeMismatch, match=r"no greeting of wire versions \[1, 2\]"):
        handshake.decode_greeting(payload)


@pytest.mark.parametrize(
    "changes",
    [{"tp_rank": "1"}, {"memory": "DISK"}, {"layout": {"pages": [], "row_bytes": "1"}}, {"agent_metadata": None}],
)
def test_a_hello_with_a_wrong_value_is_refused(changes: dict[str, Any]) -> None:
    values = msgspec.msgpack.decode(handshake.encode_hello(HELLO))
    with pytest.raises(HandshakeMismatch, match="hello can't be read"):
        handshake.decode_hello(msgspec.msgpack.encode(values | changes))


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_a_mismatch(payload: bytes) -> None:
    opens_or_mismatches(payload)
    opens_or_mismatches(shell(WIRE_VERSION, payload))


@given(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=4), st.booleans())
def test_a_damaged_answer_raises_nothing_but_a_mismatch(place: int, damage: bytes, is_cut: bool) -> None:
    for valid in (ENCODED, handshake.encode_hello(HELLO)):
        at = place % len(valid)
        opens_or_mismatches(valid[:at] if is_cut else valid[:at] + damage + valid[at + len(damage) :])


@pytest.mark.parametrize("depth", [100, 100_000])
def test_a_nest_without_end_raises_nothing_but_a_mismatch(depth: int) -> None:
    opens_or_mismatches(b"\x91" * depth)
    opens_or_mismatches(b"\x81\xa1x" * depth)
    opens_or_mismatches(shell(WIRE_VERSION, b"\x81\xa1x" + b"\x91" * depth))


def opens_or_mismatches(payload: bytes) -> None:
    for decode in (handshake.decode_greeting, handshake.decode_hello):
        try:
            decode(payload)
        except HandshakeMismatch as refusal:
            assert str(refusal)  # noqa: PT017 - most payloads are refused, some damage leaves an answer

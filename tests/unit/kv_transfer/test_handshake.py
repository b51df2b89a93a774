"""Two ranks fit only when everything that a row's bytes depend on is the same."""

from typing import Any

import msgspec
import pytest

from kv_transfer import handshake
from kv_transfer.layout import Page, RowLayout
from wire.errors import HandshakeMismatch

LAYOUT = RowLayout.from_pages([Page("kv_pool", 0, 1152, True), Page("index_pool", 1152, 288, False)], 1440)


def hello(**changes: Any) -> handshake.Hello:
    values: dict[str, Any] = {
        "engine_id": "p-1",
        "tp_size": 2,
        "tp_rank": 1,
        "block_size": 128,
        "layout": LAYOUT,
        "num_blocks": 9,
        "base_address": 1 << 40,
        "device_id": 0,
        "memory": "DRAM",
        "agent_metadata": b"\x00nixl",
    }
    return handshake.Hello(**(values | changes))


def test_a_hello_survives_the_wire() -> None:
    assert handshake.decode_all(handshake.encode_all([handshake.encode(hello())])) == [hello()]


def test_equal_rows_fit_whatever_their_number_and_address() -> None:
    handshake.check_peer(hello(engine_id="d-1", num_blocks=4, base_address=64), hello(), engine_id="p-1")


@pytest.mark.parametrize(
    "change",
    [
        {"wire_version": 2},
        {"tp_size": 4},
        {"tp_rank": 0},
        {"block_size": 64},
        {"memory": "VRAM"},
        {"layout": RowLayout.from_pages([Page("kv_pool", 0, 1440, True)], 1440)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_difference_is_refused_with_both_values(change: dict[str, Any]) -> None:
    name, value = next(iter(change.items()))
    with pytest.raises(HandshakeMismatch) as refusal:
        handshake.check_peer(hello(), hello(**change), engine_id="p-1")
    assert name in str(refusal.value)
    assert str(value) in str(refusal.value)
    assert str(getattr(hello(), name)) in str(refusal.value)


def test_a_restarted_engine_at_the_same_address_is_refused() -> None:
    with pytest.raises(HandshakeMismatch, match="names engine p-1, but p-2 answers"):
        handshake.check_peer(hello(), hello(engine_id="p-2"), engine_id="p-1")


@pytest.mark.parametrize("payload", [b"", b"nonsense", msgspec.msgpack.encode({"engine_id": 1}), b"\xc1" * 9])
def test_bytes_that_are_no_hello_are_refused(payload: bytes) -> None:
    with pytest.raises(HandshakeMismatch):
        handshake.decode(payload)
    with pytest.raises(HandshakeMismatch):
        handshake.decode_all(payload)

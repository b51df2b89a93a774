"""Whoever lacks the cluster token gets nothing from the side channel, and can't make the engine hold anything."""

from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest
import zmq

from kv_transfer import side_channel
from tests.unit.kv_transfer.strangers import OPENINGS, connect, greeting, is_cut, pour, tapped
from tests.unit.kv_transfer.test_side_channel import free_port
from wire.errors import TransferFailed
from wire.worker_config import CLUSTER_TOKEN_ENV

TOKEN = "secret of the deployment"
PAYLOAD = b"where my rows lie"
HANDSHAKE_MS = 300
MOST_BYTES = 4 << 20
NUM_STRANGERS = 40


@pytest.fixture
def asked() -> list[bytes]:
    return []


@pytest.fixture
def port(asked: list[bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(side_channel, "_HANDSHAKE_MS", HANDSHAKE_MS, raising=False)

    def answer(payload: bytes) -> bytes:
        asked.append(payload)
        return payload

    port = free_port()
    server = side_channel.SideChannelServer("127.0.0.1", port, {side_channel.HELLO: answer}, token=TOKEN)
    yield port
    server.close()


def hello(port: int, token: str = TOKEN, timeout_s: float = 5) -> bytes:
    return side_channel.ask("127.0.0.1", port, side_channel.HELLO, PAYLOAD, token=token, timeout_s=timeout_s)


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_message_without_an_end_is_cut_before_it_fills_memory(port: int, asked: list[bytes], opening: str) -> None:
    words, frame = OPENINGS[opening]
    before = psutil.Process().memory_info().rss
    with connect(port, words) as stranger:
        assert pour(stranger, frame) < MOST_BYTES
        assert is_cut(stranger)
    assert psutil.Process().memory_info().rss - before < 4 * MOST_BYTES
    assert asked == []
    assert hello(port) == PAYLOAD


@pytest.mark.parametrize("token", ["", "guess", TOKEN + " "])
def test_another_token_gets_no_answer_and_leaves_nothing_behind(port: int, asked: list[bytes], token: str) -> None:
    assert hello(port) == PAYLOAD
    before = psutil.Process().num_fds()
    for _ in range(5):
        with pytest.raises(TransferFailed, match=CLUSTER_TOKEN_ENV):
            hello(port, token, timeout_s=0.15)
    assert asked == [PAYLOAD]
    assert hello(port) == PAYLOAD
    assert psutil.Process().num_fds() <= before + 1  # the server may still be closing one


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"\xff",
        greeting(b"CURVE")[:40],
        greeting(b"CURVE"),
        greeting(b"CURVE") + b"\x06" + (1 << 17).to_bytes(8, "big") + bytes((1 << 17) - 1),
    ],
    ids=["nothing", "one byte", "half a greeting", "a greeting", "all but the last byte of a command"],
)
def test_those_who_dawdle_are_cut_and_delay_nobody(port: int, words: bytes) -> None:
    strangers = [connect(port, words) for _ in range(NUM_STRANGERS)]
    try:
        assert hello(port) == PAYLOAD
        assert all(is_cut(stranger) for stranger in strangers)
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_frame_longer_than_any_request_is_not_taken_even_from_one_who_has_the_token(port: int) -> None:
    with pytest.raises(TransferFailed, match="no answer"):
        side_channel.ask("127.0.0.1", port, side_channel.HELLO, bytes(1 << 20), token=TOKEN, timeout_s=0.3)
    assert hello(port) == PAYLOAD


def test_neither_the_token_nor_what_is_said_crosses_in_clear(port: int) -> None:
    with tapped(port) as (tap, heard):
        assert hello(tap) == PAYLOAD
    public, secret = side_channel.server_keys(TOKEN)
    assert len(heard) > 2 * 64
    for words in (TOKEN.encode(), PAYLOAD, public, secret, zmq.utils.z85.decode(public)):
        assert words not in heard


def test_keys_follow_from_the_token_alone() -> None:
    assert side_channel.server_keys(TOKEN) == side_channel.server_keys(TOKEN)
    assert len({side_channel.server_keys(token) for token in (TOKEN, TOKEN + "x", "")}) == 3


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "::", "worker-3.example"])
def test_without_a_token_nobody_but_this_machine_is_listened_to(host: str) -> None:
    with pytest.raises(side_channel.UnsafeSideChannel, match=rf"{CLUSTER_TOKEN_ENV} is not set.*{host}"):
        side_channel.SideChannelServer(host, free_port(), {}, token="")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "[::1]", "localhost"])
def test_without_a_token_this_machine_may_be_listened_to(host: str) -> None:
    side_channel.check_secrecy(host, "")


def test_processes_without_a_token_understand_each_other() -> None:
    port = free_port()
    server = side_channel.SideChannelServer("127.0.0.1", port, {side_channel.HELLO: lambda p: p}, token="")
    with closing(server):
        assert hello(port, token="") == PAYLOAD
        with pytest.raises(TransferFailed):
            hello(port, token=TOKEN, timeout_s=0.2)


def test_a_library_that_can_t_encrypt_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda what: what != "curve")
    with pytest.raises(side_channel.UnsafeSideChannel, match="without CURVE"):
        side_channel.SideChannelServer("127.0.0.1", free_port(), {}, token=TOKEN)

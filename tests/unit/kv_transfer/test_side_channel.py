"""The side channel answers peers, refuses strangers, and survives nonsense."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import zmq

from kv_transfer import side_channel
from wire.errors import TransferFailed

TOKEN = "cluster token of the unit tests"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def refuse(payload: bytes) -> bytes:
    raise ValueError("this one is wrong\n" * max(1, len(payload)))


@pytest.fixture
def port() -> Iterator[int]:
    port = free_port()
    handlers = {
        side_channel.HELLO: lambda _: b"rows",
        side_channel.STATUS: lambda p: p + p,
        side_channel.RELEASE: refuse,
    }
    server = side_channel.SideChannelServer("127.0.0.1", port, handlers, token=TOKEN)
    yield port
    server.close()


def ask(port: int, verb: bytes, payload: bytes = b"") -> bytes:
    return side_channel.ask("127.0.0.1", port, verb, payload, token=TOKEN, timeout_s=5)


def dress(socket: "zmq.Socket[bytes]", *, is_server: bool = False) -> None:
    """Keys as the side channel has them, for one that speaks otherwise."""
    public, secret = side_channel.server_keys(TOKEN)
    if is_server:
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = public, secret
    else:
        socket.curve_serverkey = public
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()


def test_each_verb_reaches_its_handler(port: int) -> None:
    assert ask(port, side_channel.HELLO) == b"rows"
    assert ask(port, side_channel.STATUS, b"x") == b"xx"


def test_a_failing_handler_answers_its_reason_and_the_next_request_works(port: int) -> None:
    with pytest.raises(TransferFailed, match="this one is wrong"):
        ask(port, side_channel.RELEASE)
    assert ask(port, side_channel.HELLO) == b"rows"


def test_a_reason_of_many_lines_is_told_and_logged_as_one_short_one(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TransferFailed, match="this one is wrong") as told:
        ask(port, side_channel.RELEASE, bytes(15_000))
    [record] = caplog.records
    for text in (record.getMessage(), str(told.value)):
        assert len(text) < 500
        assert "\n" not in text


def test_unknown_verbs_and_frames_are_refused(port: int) -> None:
    with pytest.raises(TransferFailed, match="unknown verb"):
        ask(port, b"format-disk")
    with zmq.Context() as context, context.socket(zmq.REQ) as s:
        s.linger = 0
        dress(s)
        s.connect(f"tcp://127.0.0.1:{port}")
        s.send(b"one frame")
        assert s.poll(5000)
        assert s.recv_multipart()[0] == b"error"
    assert ask(port, side_channel.HELLO) == b"rows"


def test_a_taken_port_fails_the_start(port: int) -> None:
    with pytest.raises(zmq.ZMQError):
        side_channel.SideChannelServer("127.0.0.1", port, {}, token="")


@pytest.mark.parametrize("frames", [[b"ok"], [b"ok", b"rows", b"more"], [b"\xff"]])
def test_an_answer_of_another_protocol_is_an_error_of_the_transfer(frames: list[bytes]) -> None:
    with zmq.Context() as context, context.socket(zmq.REP) as stranger:
        stranger.linger = 0
        dress(stranger, is_server=True)
        port = stranger.bind_to_random_port("tcp://127.0.0.1")

        def answer() -> None:
            assert stranger.poll(5000)
            stranger.recv_multipart()
            stranger.send_multipart(frames)

        with ThreadPoolExecutor(1) as thread:
            answered = thread.submit(answer)
            with pytest.raises(TransferFailed):
                ask(port, side_channel.HELLO)
            answered.result()


@pytest.mark.parametrize("host", ["no such host", "127.0.0.1;ipc:///x", "host.invalid", "[::1", "\u00fc"])
def test_an_address_that_can_t_be_dialled_is_an_error_of_the_transfer(host: str) -> None:
    with pytest.raises(TransferFailed):
        side_channel.ask(host, 5600, side_channel.HELLO, timeout_s=0.05)


def test_silence_is_an_error_within_the_time_given() -> None:
    with pytest.raises(TransferFailed, match="no answer"):
        side_channel.ask("127.0.0.1", free_port(), side_channel.HELLO, timeout_s=0.05)

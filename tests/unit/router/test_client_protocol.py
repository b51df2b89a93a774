"""How long a client's connection waits for what, with a clock in the test's hand; and what it says when it ends."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from router.client_protocol import MAX_HEAD_BYTES, ClientLimits, ClientProtocol

LIMITS = ClientLimits(head_s=10, body_s=100, idle_s=40)
# A limit is kept late by at most a quarter of the smallest.
SLACK_S = 2.5
GET = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
HEAD = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"


class Clock:
    """What a connection sees of its loop: tasks are real, time is the test's, and one timer is set at a time."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._due_s, self._call = 0.0, lambda: None

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> "Clock":
        self._due_s, self._call = self.now_s + delay_s, call
        return self

    def cancel(self) -> None:
        self._call = lambda: None

    def create_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(work)

    def advance(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self._due_s <= end_s:
            self.now_s, call, self._call = self._due_s, self._call, lambda: None
            self._due_s = end_s + 1
            call()
        self.now_s = end_s


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Connected:
    """A connection to an application that answers when ``gate`` opens, and what it got of each request."""

    def __init__(self) -> None:
        self.clock, self.transport, self.gate = Clock(), FakeTransport(), asyncio.Event()
        self.bodies: list[bytes] = []
        self.reads_body = True
        config = uvicorn.Config(self._answer, interface="asgi3", ws="none", proxy_headers=False, log_config=None)
        config.load()
        loop: Any = self.clock
        self.protocol = ClientProtocol(config, ServerState(), {}, loop, limits=LIMITS)
        self.protocol.connection_made(self.transport)

    async def _answer(self, _: Scope, receive: Receive, send: Send) -> None:
        message = await receive() if self.reads_body else {}
        body = message.get("body", b"")
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
        self.bodies.append(body)
        await self.gate.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    def say(self, data: bytes) -> None:
        self.protocol.data_received(data)

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def is_cut_after(self, seconds: float) -> bool:
        """Whether it holds until just before then and is closed soon after."""
        self.clock.advance(seconds - 0.01)
        if self.transport.is_closed:
            return False
        self.clock.advance(SLACK_S + 0.01)
        return self.transport.is_closed

    @property
    def status(self) -> int:
        """Of the last answer that was written; 0: nothing was."""
        last = self.transport.written.rpartition(b"HTTP/1.1 ")[2]
        return int(last[:3]) if last else 0


@pytest.fixture
async def connected() -> Connected:
    return Connected()


async def test_who_says_nothing_is_cut_without_a_word(connected: Connected) -> None:
    assert connected.is_cut_after(10)
    assert connected.transport.written == b""


async def test_a_head_without_an_end_is_a_408(connected: Connected) -> None:
    connected.say(b"GET /health HTTP/1.1\r\n")
    for _ in range(4):
        connected.clock.advance(2.4)
        connected.say(b"x: y\r\n")
    assert not connected.transport.is_closed
    connected.clock.advance(4)
    assert (connected.status, connected.transport.is_closed) == (408, True)
    body = json.loads(connected.transport.written.partition(b"\r\n\r\n")[2])
    assert body["error"]["code"] == 408


async def test_line_breaks_are_no_request(connected: Connected) -> None:
    for _ in range(4):
        connected.clock.advance(2.4)
        connected.say(b"\r\n")
    connected.clock.advance(4)
    assert connected.transport.is_closed


async def test_a_body_without_an_end_is_a_408_however_it_trickles(connected: Connected) -> None:
    connected.say(HEAD)
    await connected.settle()
    connected.clock.advance(50)
    connected.say(b"{")
    await connected.settle()
    connected.clock.advance(49)
    assert not connected.transport.is_closed
    connected.clock.advance(1 + 2 * SLACK_S)
    assert (connected.status, connected.transport.is_closed) == (408, True)


async def test_an_answer_may_take_for_ever_and_the_next_request_its_time(connected: Connected) -> None:
    connected.say(HEAD + b"{  }")
    await connected.settle()
    connected.clock.advance(100_000)
    assert not connected.transport.is_closed
    connected.gate.set()
    await connected.settle()
    assert connected.status == 200
    assert connected.is_cut_after(40)
    assert connected.transport.written.count(b"HTTP/1.1") == 1


async def test_a_used_connection_is_idle_only_from_its_last_answer_on(connected: Connected) -> None:
    connected.gate.set()
    for _ in range(5):
        connected.say(HEAD)
        await connected.settle()
        connected.clock.advance(39)
        connected.say(b"{  }")
        await connected.settle()
        connected.clock.advance(39)
    assert not connected.transport.is_closed
    assert connected.bodies == [b"{  }"] * 5


async def test_a_next_head_without_an_end_waits_for_the_running_answer_and_is_cut_then(connected: Connected) -> None:
    connected.say(GET + b"GET /hea")
    await connected.settle()
    connected.clock.advance(1000)
    assert not connected.transport.is_closed
    connected.gate.set()
    await connected.settle()
    connected.clock.advance(10 + 2 * SLACK_S)
    assert (connected.status, connected.transport.is_closed) == (408, True)


async def test_requests_in_line_are_not_late(connected: Connected) -> None:
    connected.say(GET + HEAD)
    await connected.settle()
    connected.clock.advance(1000)
    assert not connected.transport.is_closed
    connected.gate.set()
    await connected.settle()
    assert connected.is_cut_after(100)


async def test_a_body_that_the_application_does_not_take_yet_is_not_late(connected: Connected) -> None:
    connected.reads_body = False
    connected.say(HEAD.replace(b"4", b"90000") + bytes(80_000))
    await connected.settle()
    connected.clock.advance(1000)
    assert not connected.transport.is_closed


async def test_a_body_that_goes_on_after_its_answer_has_its_time_and_no_more(connected: Connected) -> None:
    connected.reads_body = False
    connected.gate.set()
    connected.say(HEAD)
    await connected.settle()
    assert connected.status == 200
    for _ in range(3):
        connected.clock.advance(30)
        connected.say(b"x")
    assert not connected.transport.is_closed
    connected.clock.advance(10 + 2 * SLACK_S)
    assert connected.transport.is_closed


async def test_the_end_of_such_a_body_begins_the_wait_for_the_next_request(connected: Connected) -> None:
    connected.reads_body = False
    connected.gate.set()
    connected.say(HEAD)
    await connected.settle()
    connected.clock.advance(30)
    connected.say(b"{  }")
    assert connected.is_cut_after(40)


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00", b"hello there\r\n\r\n", b"GET / HTTP/1.1\r\n bad\r\n\r\n", b"\0" * 99]
)
async def test_what_is_not_http_is_a_400_in_the_shape_of_all_errors(connected: Connected, data: bytes) -> None:
    connected.say(data)
    assert (connected.status, connected.transport.is_closed) == (400, True)
    assert json.loads(connected.transport.written.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


async def test_nothing_is_written_into_the_middle_of_another_answer(connected: Connected) -> None:
    connected.say(GET + GET + b"hello there\r\n\r\n")
    await connected.settle()
    assert connected.transport.is_closed
    assert connected.transport.written == b""


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nx: ", b"", b"GET /"])
async def test_a_head_that_is_too_long_is_a_431(connected: Connected, data: bytes) -> None:
    connected.say(data)
    for _ in range(MAX_HEAD_BYTES // 1000 + 1):
        assert not connected.transport.is_closed
        connected.say((b"y" if data else b"\r\n") * (1000 if data else 500))
    assert (connected.status, connected.transport.is_closed) == (431, True)


async def test_endless_headers_behind_a_body_are_cut(connected: Connected) -> None:
    connected.say(b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n")
    for _ in range(MAX_HEAD_BYTES // 1000 + 1):
        connected.say(b"y: " + b"z" * 995 + b"\r\n")
    assert connected.transport.is_closed


async def test_many_requests_and_long_bodies_are_no_long_head(connected: Connected) -> None:
    connected.gate.set()
    chunks = b"".join([b"1\r\nx\r\n"] * 10)
    for _ in range(MAX_HEAD_BYTES // len(GET) + 1):
        connected.say(GET)
        await connected.settle()
    connected.say(b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(MAX_HEAD_BYTES // len(chunks) + 1):
        connected.say(chunks)
    connected.say(b"0\r\n\r\n" + HEAD.replace(b"4", b"300000") + bytes(300_000))
    await connected.settle()
    assert not connected.transport.is_closed
    assert [len(body) for body in connected.bodies[-2:]] == [10 * (MAX_HEAD_BYTES // len(chunks) + 1), 300_000]

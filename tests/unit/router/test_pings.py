"""A stream that has nothing to say for long says that it lives, and one that begins in time costs nothing."""

import asyncio
from collections.abc import Callable
from itertools import chain, repeat

import pytest
from starlette.types import Message

from router.pings import Pinger
from router.reply import PING, Reply
from router.worker_client import WorkerAnswer, WorkerBroken
from tests.unit.router.factories import ManualTimers, make_context
from wire.errors import NoWorker

INTERVAL_S = 15.0
Gate = Callable[[], "asyncio.Future[None] | None"]
SSE = {"content-type": "text/event-stream"}


class Stage:
    """A pinger, its clock, and replies whose messages are kept."""

    def __init__(self) -> None:
        self.timers = ManualTimers()
        self.num_pings = 0
        self.pinger = Pinger(
            INTERVAL_S, on_ping=self._count, clock=self.timers.clock, call_later=self.timers.call_later
        )

    def _count(self) -> None:
        self.num_pings += 1

    def watched(
        self, *, gate: Callable[[], "asyncio.Future[None] | None"] = lambda: None
    ) -> tuple[Reply, list[Message]]:
        """A reply that arrives now; with ``gate``, each message waits for what it gives."""
        sent: list[Message] = []

        async def send(message: Message) -> None:
            waited = gate()
            if waited is not None:
                await waited
            sent.append(message)

        now_s = self.timers.clock.now_s
        reply = Reply(make_context(start_s=now_s), send, self.timers.clock)
        self.pinger.watch(reply, now_s)
        return reply, sent

    async def pass_time(self, seconds: float) -> None:
        self.timers.advance(seconds)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def bodies(sent: list[Message]) -> list[bytes]:
    return [message["body"] for message in sent if message["type"] == "http.response.body"]


def starts(sent: list[Message]) -> list[int]:
    return [message["status"] for message in sent if message["type"] == "http.response.start"]


async def test_the_first_ping_brings_the_head_of_a_stream_and_the_others_follow_it(stage: Stage) -> None:
    _, sent = stage.watched()
    await stage.pass_time(INTERVAL_S - 0.1)
    assert sent == []
    await stage.pass_time(0.2)
    assert sent[0]["headers"][0] == (b"content-type", b"text/event-stream; charset=utf-8")
    assert (starts(sent), bodies(sent)) == ([200], [PING])
    await stage.pass_time(INTERVAL_S)
    await stage.pass_time(INTERVAL_S)
    assert (starts(sent), bodies(sent)) == ([200], [PING] * 3)
    assert stage.num_pings == 3


async def test_content_after_a_ping_has_no_second_head_and_ends_the_pings(stage: Stage) -> None:
    reply, sent = stage.watched()
    await stage.pass_time(INTERVAL_S)
    await reply.piece(200, SSE, b"data: 1\n\n")
    await stage.pass_time(5 * INTERVAL_S)
    assert (starts(sent), bodies(sent)) == ([200], [PING, b"data: 1\n\n"])
    assert stage.timers.num_pending == 0


async def test_an_error_after_a_ping_is_the_last_event(stage: Stage) -> None:
    reply, sent = stage.watched()
    await stage.pass_time(INTERVAL_S)
    await reply.fail(NoWorker("nobody", code="no_worker"))
    assert bodies(sent)[1].startswith(b'data: {"error": {"message": "nobody"')
    assert (starts(sent), sent[-1]["more_body"]) == ([200], False)


async def test_a_workers_refusal_after_a_ping_is_one_event_though_it_has_line_breaks(stage: Stage) -> None:
    reply, sent = stage.watched()
    await stage.pass_time(INTERVAL_S)
    await reply.refuse(WorkerAnswer(400, {}, b'{"error":\r\n {"message":\n"no"}}\n'))
    assert bodies(sent)[1] == b'data: {"error":   {"message": "no"}}\n\n'
    assert (starts(sent), sent[-1]["more_body"]) == ([200], False)


async def test_an_answer_that_is_no_stream_cannot_follow_a_ping(stage: Stage) -> None:
    reply, sent = stage.watched()
    await stage.pass_time(INTERVAL_S)
    with pytest.raises(WorkerBroken):
        await reply.whole(200, {"content-type": "application/json"}, b"{}")
    assert bodies(sent) == [PING]
    assert reply.may_ping


async def test_a_stream_that_begins_in_time_gets_no_ping(stage: Stage) -> None:
    reply, sent = stage.watched()
    await reply.piece(200, SSE, b"data: 1\n\n")
    stage.pinger.forget(reply)
    await stage.pass_time(5 * INTERVAL_S)
    assert bodies(sent) == [b"data: 1\n\n"]
    assert (stage.num_pings, stage.timers.num_pending) == (0, 0)


async def test_a_thousand_streams_share_one_timer(stage: Stage) -> None:
    replies = [stage.watched()[0] for _ in range(1000)]
    assert stage.timers.num_pending == 1
    for reply in replies:
        stage.pinger.forget(reply)
    stage.pinger.forget(replies[0])
    await stage.pass_time(INTERVAL_S)
    assert stage.timers.num_pending == 0


async def test_each_stream_is_pinged_by_its_own_time(stage: Stage) -> None:
    _, early = stage.watched()
    await stage.pass_time(10)
    _, late = stage.watched()
    await stage.pass_time(6)
    assert (len(bodies(early)), len(bodies(late))) == (1, 0)
    await stage.pass_time(10)
    assert (len(bodies(early)), len(bodies(late))) == (1, 1)
    await stage.pass_time(5)
    assert (len(bodies(early)), len(bodies(late))) == (2, 1)


@pytest.mark.parametrize("follows", ["content", "error"])
async def test_what_follows_waits_for_a_ping_that_is_on_its_way(stage: Stage, follows: str) -> None:
    held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    gates = chain([held], repeat(None))
    reply, sent = stage.watched(gate=lambda: next(gates))
    await stage.pass_time(INTERVAL_S)
    work = reply.piece(200, SSE, b"data: 1\n\n") if follows == "content" else reply.fail(NoWorker("nobody"))
    following = asyncio.create_task(work)
    await stage.pass_time(0)
    assert sent == []
    held.set_result(None)
    await following
    assert [message["type"].rpartition(".")[2] for message in sent] == ["start", "body", "body"]
    assert bodies(sent)[0] == PING


async def test_pings_do_not_pile_up_for_a_client_that_does_not_read(stage: Stage) -> None:
    held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    _, sent = stage.watched(gate=lambda: held)
    await stage.pass_time(INTERVAL_S)
    await stage.pass_time(INTERVAL_S)
    await stage.pass_time(INTERVAL_S)
    held.set_result(None)
    await stage.pass_time(0)
    assert bodies(sent) == [PING]
    assert stage.num_pings == 1


async def test_a_client_that_is_gone_is_no_fault(stage: Stage) -> None:
    def broken() -> None:
        raise OSError("gone")

    reply, sent = stage.watched(gate=broken)
    await stage.pass_time(2 * INTERVAL_S)
    assert sent == []
    stage.pinger.forget(reply)


async def test_the_first_byte_is_that_of_the_content(stage: Stage) -> None:
    reply, _ = stage.watched()
    await stage.pass_time(INTERVAL_S)
    assert reply._ctx.first_byte_s is None
    await reply.piece(200, SSE, b"data: 1\n\n")
    assert reply._ctx.first_byte_s == stage.timers.clock.now_s

"""What processes say to each other arrives as it was said; what is no message is refused."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pydantic import SecretStr

from router.config import RouterConfig
from router.metric_sums import Family, Sample
from router.process_channel import Channel
from router.process_messages import (
    Load,
    Message,
    Order,
    Report,
    Start,
    State,
    Suspect,
    Workers,
    config_json,
    decode,
    encode,
)
from router.worker_news import TellingRegistry
from router.workers import BreakerState
from tests.unit.router.factories import ManualClock, make_heartbeat
from wire.worker import WorkerRole

FAMILY = Family("answers", "counter", "Answers\nin two lines.", (Sample("answers_total", (("key", 'a"\n'),), 3.0),))


def workers() -> Workers:
    registry = TellingRegistry(ttl_s=5, clock=ManualClock())
    registry.heartbeat(make_heartbeat())
    registry.add_static(WorkerRole.DECODE, "http://decode:1")
    heard, gone = registry.news_of([*registry.all_ids(), "prefill-9"])
    return Workers(heard=heard, gone=gone, has_been_whole=True)


MESSAGES: list[Message] = [
    Start(config="{}"),
    workers(),
    Order(name="report"),
    State(name="idle"),
    Suspect(worker_id="prefill-0", generation="g1"),
    Report(families=(FAMILY,), loads=(Load("prefill-0", 1, 20, BreakerState.HALF_OPEN),)),
]


@asynccontextmanager
async def channels() -> AsyncIterator[tuple[Channel, Channel]]:
    one, other = [await Channel.open(sock) for sock in socket.socketpair()]
    try:
        yield one, other
    finally:
        await one.aclose()
        await other.aclose()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.kind)
def test_a_message_is_one_line_and_comes_back_the_same(message: Message) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize("line", [b"", b"{}\n", b'{"kind": "order", "name": "dance"}\n', b'{"kind": "state"', b"x\n"])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        decode(line)


def test_a_configuration_arrives_whole_with_its_secrets_which_are_not_shown() -> None:
    config = RouterConfig.model_validate(
        {
            "metrics_port": 9000,
            "processes": 3,
            "prefill": ["http://a:1"],
            "cluster_token": "hush",
            "api_keys": ["alice:hush-1", "hush-2"],
            "api_keys_file": "keys",
            "worker_ca_file": "ca.pem",
            "max_in_flight_per_key": 2,
        }
    )
    message = Start(config=config_json(config))
    assert RouterConfig.model_validate_json(message.config) == config
    assert config.cluster_token == SecretStr("hush")
    assert "hush" not in repr(message)
    assert RouterConfig.model_validate_json(config_json(RouterConfig())) == RouterConfig()


async def test_messages_arrive_in_order_until_the_other_end_is_gone() -> None:
    async with channels() as (one, other):
        for message in MESSAGES:
            one.send(message)
        await one.aclose()
        assert [message async for message in other.messages()] == MESSAGES


async def test_a_long_message_arrives_whole() -> None:
    long = Report(families=(FAMILY,) * 20_000, loads=())
    async with channels() as (one, other):
        one.send(long)
        assert await asyncio.wait_for(anext(other.messages()), 30) == long
        assert one.num_unsent_bytes == 0


async def test_half_a_message_is_none_and_what_is_no_message_ends_the_talk() -> None:
    async with channels() as (one, other):
        one.send_line(encode(State(name="idle"))[:-1])
        await one.aclose()
        assert [message async for message in other.messages()] == []
    async with channels() as (one, other):
        one.send_line(b"nonsense\n")
        with pytest.raises(ValueError, match="validation error"):
            await anext(other.messages())


async def test_nobody_minds_a_message_to_one_who_is_gone() -> None:
    async with channels() as (one, other):
        await other.aclose()
        assert [message async for message in one.messages()] == []
        for _ in range(3):
            one.send(State(name="idle"))
            await asyncio.sleep(0)

"""Each beat tells the router how the worker is, and the engine whom it may read from, once for each change."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.unit.vllm_engine.factories import FINGERPRINT, KEYS, PEER, TOKEN, identity
from tests.unit.vllm_engine.processes import Engine, process
from tests.unit.vllm_engine.routers import Router, refusal, serving
from vllm_engine.heartbeat import Heartbeat
from vllm_engine.identity import RegistrationRefused
from vllm_engine.state import WorkerProcess
from wire.worker import WorkerHeartbeat, WorkerState
from wire.worker_config import CLUSTER_TOKEN_ENV

OTHER = PEER.model_copy(update={"engine_id": "prefill-1-life1", "host": "10.0.0.8"})
ROUTER = "http://router.test"


def reply(*peers: Any) -> tuple[int, Any]:
    return 200, {"ttl_s": 10.0, "peers": [peer.model_dump() for peer in peers]}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch)


class Beating:
    """A worker and a router that answers as told; an exception stands for one that is away."""

    def __init__(self, *answers: tuple[int, Any] | Exception) -> None:
        self.worker: WorkerProcess = process(router_url=ROUTER)
        self.answers = list(answers)
        self.router = Router()
        self.heartbeat = Heartbeat(self.worker, httpx.AsyncClient(transport=httpx.MockTransport(self._answer)))

    def _answer(self, asked: httpx.Request) -> httpx.Response:
        answer = self.answers.pop(0)
        self.router.answers = [(200, {})]
        self.router.answer(asked.method, asked.url.path, dict(asked.headers), asked.content)
        if isinstance(answer, Exception):
            raise answer
        status, content = answer
        return httpx.Response(status, json=content)

    async def beat(self, times: int = 1) -> None:
        for _ in range(times):
            await self.heartbeat.beat()


async def test_a_beat_says_who_the_worker_is_and_how_it_is(engine: Engine) -> None:
    beating = Beating(reply())
    await beating.beat()
    [(method, path, headers, body)] = beating.router.seen
    assert (method, path, headers["authorization"]) == ("POST", "/internal/workers", f"Bearer {TOKEN}")
    told = WorkerHeartbeat.model_validate(body)
    assert told.registration.fingerprint == FINGERPRINT
    assert (told.registration.handoff_key, told.registration.handoff_keys) == (KEYS.signs, KEYS.verifies)
    assert (told.registration.engine_id, told.registration.generation) == ("decode-0-life1", "life1")
    assert (told.registration.row_bytes, told.registration.kv_port) == (1440, 8250)
    assert (told.status.state, told.status.num_leases) == (WorkerState.READY, 2)


async def test_the_engine_is_told_of_its_peers_once_for_each_change(engine: Engine) -> None:
    beating = Beating(reply(PEER), reply(PEER), reply(OTHER, PEER), reply(PEER, OTHER), reply())
    await beating.beat(5)
    assert [[peer["engine_id"] for peer in told] for told in engine.told] == [
        [PEER.engine_id],
        [OTHER.engine_id, PEER.engine_id],
        [],
    ]
    assert engine.told[0] == [PEER.model_dump()]


async def test_an_engine_that_did_not_hear_is_told_again(engine: Engine) -> None:
    beating = Beating(reply(PEER), reply(PEER))
    engine.is_silent = True
    await beating.beat()
    assert beating.worker.peers == frozenset()
    engine.is_silent = False
    await beating.beat()
    assert engine.told == [[PEER.model_dump()]]


@pytest.mark.parametrize(
    "away", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), (503, {}), (500, {}), (200, {"ttl_s": 0})]
)
async def test_a_router_that_is_away_changes_nothing_and_is_tried_again(engine: Engine, away: Any) -> None:
    beating = Beating(reply(PEER), away, reply(PEER))
    await beating.beat(3)
    assert engine.told == [[PEER.model_dump()]]
    assert beating.worker.peers == {PEER}


async def test_a_worker_that_was_registered_goes_on_when_a_restarted_router_refuses_it(engine: Engine) -> None:
    beating = Beating(reply(PEER), refusal("weights differ"), reply(PEER, OTHER))
    await beating.beat(3)
    assert len(engine.told) == 2


async def test_a_worker_without_a_cluster_token_registers_too(engine: Engine) -> None:
    with serving(reply(PEER)) as router:
        worker = process(router_url=router.url)
        worker.identity = identity(token="")
        async with httpx.AsyncClient() as client:
            await Heartbeat(worker, client).beat()
    assert engine.told == [[PEER.model_dump()]]


async def test_a_refusal_of_the_first_beat_ends_them_with_the_router_s_reason(engine: Engine) -> None:
    beating = Beating(httpx.ConnectError("not up yet"), refusal("weights differ"))
    beating.worker.config = beating.worker.config.model_copy(update={"heartbeat_s": 0.001})
    with pytest.raises(RegistrationRefused, match="weights differ"):
        await asyncio.wait_for(beating.heartbeat.run(), 20)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_first_beat_with_a_wrong_token_ends_them_by_its_name(engine: Engine, status: int) -> None:
    beating = Beating((503, {}), (status, {}))
    beating.worker.config = beating.worker.config.model_copy(update={"heartbeat_s": 0.001})
    with pytest.raises(RegistrationRefused, match=CLUSTER_TOKEN_ENV):
        await asyncio.wait_for(beating.heartbeat.run(), 20)


async def test_a_registered_worker_goes_on_when_a_router_with_another_token_takes_over(engine: Engine) -> None:
    beating = Beating(reply(PEER), (401, {}), reply(PEER, OTHER))
    await beating.beat(3)
    assert len(engine.told) == 2


async def test_beats_of_several_askers_follow_each_other(engine: Engine) -> None:
    beating = Beating(*[reply(PEER)] * 3)
    await asyncio.gather(*[beating.heartbeat.beat() for _ in range(3)])
    assert len(beating.router.seen) == 3
    assert engine.told == [[PEER.model_dump()]]


@pytest.mark.parametrize("answer", [(200, {}), (500, {}), httpx.ConnectError("refused")])
async def test_a_worker_that_leaves_says_so_and_goes_whatever_the_answer(engine: Engine, answer: Any) -> None:
    beating = Beating(answer)
    await beating.heartbeat.leave()
    [(method, path, headers, _)] = beating.router.seen
    assert (method, path, headers["authorization"]) == ("DELETE", "/internal/workers/decode-0", f"Bearer {TOKEN}")

"""What a worker says of itself: ready only while its engine answers, and which peers a handoff may name."""

import pytest

from tests.unit.vllm_engine.factories import CONFIG, PEER
from tests.unit.vllm_engine.processes import Engine, process
from vllm_engine.state import WorkerProcess
from wire.errors import TransferFailed
from wire.worker import WorkerState


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch)


async def test_a_worker_whose_engine_answers_is_ready_and_counts_its_leases(engine: Engine) -> None:
    status = await process().status()
    assert (status.state, status.num_leases) == (WorkerState.READY, 2)


async def test_an_engine_that_was_silent_for_long_makes_the_worker_one_that_starts(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, now = process(), 1000.0
    monkeypatch.setattr("vllm_engine.state.time.monotonic", lambda: now)
    assert await worker.can_serve()
    engine.is_silent = True
    now += 19
    assert await worker.can_serve(), "it may only be busy"
    now += 2
    assert not await worker.can_serve()
    assert (await worker.status()).state is WorkerState.STARTING
    engine.is_silent = False
    assert (await worker.status()).state is WorkerState.READY


@pytest.mark.parametrize("own_state", [WorkerState.STARTING, WorkerState.DRAINING])
async def test_a_worker_that_takes_nothing_new_is_not_ready(engine: Engine, own_state: WorkerState) -> None:
    worker = process()
    worker.state = own_state
    assert not await worker.can_serve()
    assert (await worker.status()).state is own_state


async def test_a_named_peer_is_registered_at_its_own_address_only(engine: Engine) -> None:
    worker = process()
    await worker.set_peers((PEER,))
    assert await worker.is_registered(PEER.engine_id, PEER.host, PEER.port)
    assert not await worker.is_registered(PEER.engine_id, PEER.host, PEER.port + 1)
    assert not await worker.is_registered(PEER.engine_id, "10.9.9.9", PEER.port)
    assert not await worker.is_registered("prefill-0-life2", PEER.host, PEER.port)


async def test_a_configured_peer_is_registered_whatever_its_engine_id(engine: Engine) -> None:
    address = f"{PEER.host}:{PEER.port}"
    worker = process(kv_transfer=CONFIG["kv_transfer"] | {"extra_peers": [address]})
    assert await worker.is_registered("any", PEER.host, PEER.port)
    assert not await worker.is_registered("any", PEER.host, PEER.port + 1)


def with_router(worker: WorkerProcess, *peers: object) -> list[int]:
    """A router that names ``peers`` from now on; how often it is asked."""
    asked: list[int] = []

    async def refresh() -> None:
        asked.append(1)
        await worker.set_peers(peers)  # type: ignore[arg-type]

    worker.refresh_peers = refresh
    return asked


async def test_an_unknown_peer_is_asked_about_once_and_a_known_one_never(engine: Engine) -> None:
    worker = process()
    asked = with_router(worker, PEER)
    assert await worker.is_registered(PEER.engine_id, PEER.host, PEER.port)
    assert len(asked) == 1
    assert await worker.is_registered(PEER.engine_id, PEER.host, PEER.port)
    assert len(asked) == 1
    assert not await worker.is_registered("prefill-9-foreign", PEER.host, PEER.port)
    assert len(asked) == 2


async def test_peers_that_the_engine_was_not_told_of_are_not_registered(engine: Engine) -> None:
    worker = process()
    engine.is_silent = True
    with pytest.raises(TransferFailed):
        await worker.set_peers((PEER,))
    assert worker.peers == frozenset()

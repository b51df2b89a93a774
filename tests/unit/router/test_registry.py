"""The registry believes a worker for as long as it is heard, and only as it says it is."""

import pytest

from router.registry import NUM_FENCED_GENERATIONS, WorkerRegistry
from tests.unit.router.factories import ManualClock, make_heartbeat
from wire.errors import BadRequest, NotFound
from wire.versions import HISTORY
from wire.worker import WorkerRole, WorkerState

TTL_S = 6.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def registry(clock: ManualClock) -> WorkerRegistry:
    return WorkerRegistry(ttl_s=TTL_S, clock=clock)


def usable_ids(registry: WorkerRegistry, role: WorkerRole = WorkerRole.PREFILL) -> list[str]:
    return [worker.worker_id for worker in registry.pools().usable(role)]


def test_a_heartbeat_registers_a_worker_for_the_ttl(registry: WorkerRegistry, clock: ManualClock) -> None:
    registry.heartbeat(make_heartbeat())
    clock.now_s += TTL_S
    assert usable_ids(registry) == ["prefill-0"]
    clock.now_s += 0.01
    assert usable_ids(registry) == []
    assert registry.workers() == []


def test_each_heartbeat_prolongs_the_ttl(registry: WorkerRegistry, clock: ManualClock) -> None:
    for _ in range(5):
        registry.heartbeat(make_heartbeat())
        clock.now_s += TTL_S - 1
    assert usable_ids(registry) == ["prefill-0"]


@pytest.mark.parametrize("state", [WorkerState.STARTING, WorkerState.DRAINING])
def test_only_a_ready_worker_is_usable(registry: WorkerRegistry, state: WorkerState) -> None:
    registry.heartbeat(make_heartbeat(state=state))
    assert usable_ids(registry) == []
    assert len(registry.workers()) == 1


def test_a_suspect_is_not_usable_until_its_next_heartbeat(registry: WorkerRegistry) -> None:
    worker = registry.heartbeat(make_heartbeat())
    registry.suspect(worker)
    assert usable_ids(registry) == []
    registry.heartbeat(make_heartbeat())
    assert usable_ids(registry) == ["prefill-0"]


def test_a_new_generation_replaces_the_old_one_at_once(registry: WorkerRegistry) -> None:
    old = registry.heartbeat(make_heartbeat(generation="g1"))
    old.num_in_flight = 3
    new = registry.heartbeat(make_heartbeat(generation="g2", url="http://127.0.0.1:9999"))
    assert registry.workers() == [new]
    assert (new.num_in_flight, new.url) == (0, "http://127.0.0.1:9999")


def test_a_replaced_generation_cannot_come_back(registry: WorkerRegistry) -> None:
    registry.heartbeat(make_heartbeat(generation="g1"))
    new = registry.heartbeat(make_heartbeat(generation="g2"))
    with pytest.raises(BadRequest) as caught:
        registry.heartbeat(make_heartbeat(generation="g1"))
    assert caught.value.code == "generation_replaced"
    assert registry.workers() == [new]


def test_fenced_generations_are_bounded(registry: WorkerRegistry) -> None:
    for number in range(NUM_FENCED_GENERATIONS * 3):
        registry.heartbeat(make_heartbeat(generation=f"g{number}"))
    [fenced] = registry._fenced.values()
    assert len(fenced) == NUM_FENCED_GENERATIONS


def test_an_unknown_wire_version_is_refused(registry: WorkerRegistry) -> None:
    with pytest.raises(BadRequest) as caught:
        registry.heartbeat(make_heartbeat(wire_version=99))
    assert caught.value.code == "wire_version_mismatch"
    assert registry.workers() == []


@pytest.mark.parametrize("version", HISTORY)
def test_every_version_of_the_history_may_register(registry: WorkerRegistry, version: int) -> None:
    registry.heartbeat(make_heartbeat(wire_version=version))
    assert usable_ids(registry) == ["prefill-0"]


def test_a_worker_can_be_removed_by_id(registry: WorkerRegistry) -> None:
    registry.heartbeat(make_heartbeat())
    registry.remove("prefill-0")
    assert registry.workers() == []
    with pytest.raises(NotFound):
        registry.remove("prefill-0")


def test_a_static_worker_is_usable_after_a_good_probe_and_never_expires(
    registry: WorkerRegistry, clock: ManualClock
) -> None:
    worker = registry.add_static(WorkerRole.PREFILL, "http://127.0.0.1:7000")
    assert usable_ids(registry) == []
    registry.observe_static(worker, model="nano", max_model_len=8192)
    clock.now_s += 100 * TTL_S
    assert usable_ids(registry) == [worker.worker_id] == ["prefill-127.0.0.1-7000"]
    registry.observe_static(worker, model=None, max_model_len=None)
    assert usable_ids(registry) == []
    with pytest.raises(NotFound):
        registry.remove(worker.worker_id)


def test_a_static_url_that_registers_itself_counts_once(registry: WorkerRegistry) -> None:
    static = registry.add_static(WorkerRole.PREFILL, "http://127.0.0.1:7000")
    registry.observe_static(static, model="nano", max_model_len=8192)
    registry.heartbeat(make_heartbeat(url="http://127.0.0.1:7000/"))
    assert usable_ids(registry) == ["prefill-0"]


def test_usable_workers_are_told_apart_by_role_and_model(registry: WorkerRegistry) -> None:
    registry.heartbeat(make_heartbeat("prefill-0"))
    registry.heartbeat(make_heartbeat("prefill-1", model="other"))
    registry.heartbeat(make_heartbeat("decode-0", role=WorkerRole.DECODE))
    assert usable_ids(registry) == ["prefill-0", "prefill-1"]
    assert usable_ids(registry, WorkerRole.DECODE) == ["decode-0"]
    assert [w.worker_id for w in registry.pools().usable(WorkerRole.PREFILL, "other")] == ["prefill-1"]
    assert set(registry.pools().models) == {"nano", "other"}

"""A request is given to workers that serve its model by any of their names."""

import pytest

from router.pools import Pools
from router.workers import Worker
from tests.unit.router.factories import make_worker
from wire.worker import WorkerRole

PREFILL, DECODE = WorkerRole.PREFILL, WorkerRole.DECODE


def static_worker(worker_id: str, *other_models: str) -> Worker:
    worker = make_worker(worker_id, WorkerRole(worker_id.split("-")[0]))
    worker.other_models = other_models
    return worker


@pytest.fixture
def pools() -> Pools:
    return Pools(
        [
            static_worker("prefill-0"),
            static_worker("prefill-1", "lora"),
            static_worker("decode-0"),
            static_worker("decode-1", "lora", "rare"),
        ]
    )


def ids(workers: object) -> list[str]:
    assert isinstance(workers, list | tuple)
    return [worker.worker_id for worker in workers]


def test_an_adapter_is_served_by_the_pairs_that_both_have_it(pools: Pools) -> None:
    [prefill] = pools.usable_prefills("lora")
    assert prefill.worker_id == "prefill-1"
    assert ids(pools.usable_decodes(prefill, "lora")) == ["decode-1"]
    assert pools.usable_prefills("rare") == []


@pytest.mark.parametrize("model", ["nano", None])
def test_the_base_model_is_served_by_all(pools: Pools, model: str | None) -> None:
    prefills = pools.usable_prefills(model)
    assert ids(prefills) == ["prefill-0", "prefill-1"]
    assert [ids(pools.usable_decodes(prefill, model)) for prefill in prefills] == [["decode-0", "decode-1"]] * 2


def test_every_name_is_listed_once(pools: Pools) -> None:
    assert sorted(pools.models) == ["lora", "nano", "rare"]


def test_what_clients_call_a_model_is_not_remembered(pools: Pools) -> None:
    prefill = pools.usable_prefills()[0]
    for number in range(100):
        assert ids(pools.usable_decodes(prefill, f"gpt-{number}")) == []
        assert ids(pools.usable_prefills(f"gpt-{number}")) == []
    assert len(pools._paired_decodes) + len(pools._paired_prefills) <= 4

"""A rank's part of the connector: fences close before the forward, orders go to the mover once, outcomes to vLLM."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec

from kv_transfer import connector_worker
from kv_transfer.connector_worker import IDLE_WAIT_S, WorkerSide
from kv_transfer.handshake import decode_hello
from kv_transfer.mover import Moved
from kv_transfer.step import PeerRows, StepMetadata
from tests.unit.kv_transfer.engines import vllm_config
from tests.unit.kv_transfer.ranks import SERIAL, SLOT, hold, pull

SPEC = FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=16, dtype=torch.float32)
ROW_BYTES = SPEC.page_size_bytes
NUM_BLOCKS = 12


def cache_config() -> Any:
    tensor = SimpleNamespace(layers=["layer.0"], offset=0, layer_stride=ROW_BYTES, block_stride=ROW_BYTES)
    group = SimpleNamespace(kv_cache_spec=SPEC, layer_names=["layer.0"])
    return SimpleNamespace(kv_cache_groups=[group], kv_cache_tensors=[tensor], num_blocks=NUM_BLOCKS)


class Rank:
    def __init__(self, engine_id: str, **extra: Any) -> None:
        self.engine_id = engine_id
        self.cache = torch.zeros((NUM_BLOCKS, ROW_BYTES), dtype=torch.uint8)
        self.side = WorkerSide(vllm_config(engine_id, **extra), cache_config())
        self.side.register({"layer.0": self.cache})

    def peer(self) -> PeerRows:
        return PeerRows(self.engine_id, [self.side.hello().hello])

    def results(self) -> Any:
        """What ends next."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = self.side.results()
            if found.finished_recving or found.finished_sending:
                return found
        raise AssertionError("nothing has ended")


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Rank, Rank]]:
    monkeypatch.setattr(connector_worker, "get_tensor_model_parallel_rank", lambda: 0)
    prefill, decode = Rank("worker-prefill"), Rank("worker-decode")
    yield prefill, decode
    decode.side.shutdown()
    prefill.side.shutdown()


def test_a_prompt_crosses_from_rank_to_rank(ranks: tuple[Rank, Rank]) -> None:
    prefill, decode = ranks
    prefill.cache[:] = torch.arange(NUM_BLOCKS, dtype=torch.uint8)[:, None] + 1
    prefill.side.obey(hold())
    decode.side.obey(StepMetadata(peers=[prefill.peer()], pulls=[pull("worker-prefill", [4, 8], [11, 2])]))
    found = decode.results()
    assert (found.finished_recving, found.failed_recving, found.finished_sending) == ({"req"}, set(), set())
    assert torch.equal(decode.cache[[4, 8]], prefill.cache[[11, 2]])
    stats = decode.side.take_stats()
    assert stats is not None
    assert stats.data["blocks"] == 2
    assert decode.side.take_stats() is None
    assert prefill.results().finished_sending == {"p"}


def test_a_failed_load_is_told_as_finished_and_as_failed(ranks: tuple[Rank, Rank]) -> None:
    decode = ranks[1]
    decode.side.obey(StepMetadata(pulls=[pull("worker-prefill", [4], [11], refusal="prompt: another")]))
    found = decode.results()
    assert (found.finished_recving, found.failed_recving) == ({"req"}, {"req"})


def test_a_hello_describes_the_rows_as_they_are_bound(ranks: tuple[Rank, Rank]) -> None:
    prefill = ranks[0]
    hello = decode_hello(prefill.side.hello().hello)
    assert (hello.num_blocks, hello.layout.row_bytes, hello.memory) == (NUM_BLOCKS, ROW_BYTES, "DRAM")
    assert hello.base_address == prefill.cache.data_ptr()
    assert [(page.name, page.num_heads, page.is_sharded) for page in hello.layout.pages] == [("layer.0", 4, True)]


def test_a_revoked_lease_is_over_before_the_step_computes(ranks: tuple[Rank, Rank]) -> None:
    prefill, decode = ranks
    prefill.side.obey(hold())
    prefill.side.obey(StepMetadata(revoked=[(SLOT, SERIAL)]))
    decode.side.obey(StepMetadata(peers=[prefill.peer()], pulls=[pull("worker-prefill", [4], [11])]))
    assert prefill.side._fence.words[SLOT] == SERIAL, "at once, by the engine's own thread"
    assert decode.results().failed_recving == {"req"}


def test_the_blocks_of_a_revoked_lease_are_not_given_back_later(ranks: tuple[Rank, Rank]) -> None:
    # vLLM took them itself; a second giving back would free another request's blocks.
    prefill, decode = ranks
    prefill.side.obey(hold())
    prefill.side.obey(StepMetadata(revoked=[(SLOT, SERIAL)]))
    decode.side.obey(StepMetadata(peers=[prefill.peer()], pulls=[pull("worker-prefill", [4], [11])]))
    decode.results()
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        assert prefill.side.results().finished_sending == set()
    assert len(prefill.side._mover._held) == 0, "and nothing of them is kept"


def test_orders_that_vllm_hands_over_twice_are_obeyed_once(
    ranks: tuple[Rank, Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    side = ranks[1].side
    given: list[StepMetadata] = []
    monkeypatch.setattr(side._mover, "give", given.append)
    first, second = StepMetadata(), StepMetadata()
    for orders in (first, first, second, second):
        side.obey(orders)
    assert [id(orders) for orders in given] == [id(first), id(second)]


def test_only_a_step_that_computes_nothing_waits_for_transfers(
    ranks: tuple[Rank, Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = ranks[1].side
    waits: list[float] = []
    take = decode._mover.take

    def noted_take(wait_s: float = 0.0) -> Moved:
        waits.append(wait_s)
        return take(wait_s)

    monkeypatch.setattr(decode._mover, "take", noted_take)
    for is_idle in (False, True):
        decode.obey(StepMetadata(is_idle=is_idle))
        decode.results()
        decode.results()
    assert waits == [0.0, 0.0, IDLE_WAIT_S, 0.0]


def test_tensors_that_lie_elsewhere_than_the_row_says_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector_worker, "get_tensor_model_parallel_rank", lambda: 0)
    side = WorkerSide(vllm_config("worker-wrong"), cache_config())
    with pytest.raises(ValueError, match="block stride"):
        side.register({"layer.0": torch.zeros((NUM_BLOCKS, 2 * ROW_BYTES), dtype=torch.uint8)})
    side.shutdown()

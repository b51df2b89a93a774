"""Wrong bytes are found, rounds are shared out by time, and vLLM's spinning agents are kept apart on a CPU."""

from collections.abc import Sequence

import numpy as np
import pytest

from bench.transfer.case import Case, Request, draw
from bench.transfer.copy_peers import CopyPeer
from bench.transfer.geometry import Layout
from bench.transfer.peer import Sample
from bench.transfer.pool import Pool
from bench.transfer.sink import Effort, measure, peer_groups, peer_names, verify

NUM_BLOCKS = 6


@pytest.fixture(scope="module")
def pools() -> tuple[Pool, Pool]:
    pool, replica = Pool.empty(NUM_BLOCKS, "cpu"), Pool.empty(NUM_BLOCKS, "cpu")
    replica.fill()
    return pool, replica


class FakePeer:
    """Copies pages as told, by a layout; ``fault`` breaks it."""

    name = "fake"

    def __init__(self, pool: Pool, replica: Pool, layout: Layout = "layer_outer", fault: str = "") -> None:
        self._pool, self._replica, self.layout, self._fault = pool, replica, layout, fault

    def move(self, requests: Sequence[Request]) -> Sample:
        for request in requests:
            for number, (to, of) in enumerate(
                zip(self._pool.pages(self.layout), self._replica.pages(self.layout), strict=True)
            ):
                if self._fault == "misses a page" and number == 77:
                    continue
                to[request.mine] = of[request.theirs]
        if self._fault == "writes elsewhere":
            outside = np.setdiff1d(np.arange(NUM_BLOCKS), np.concatenate([r.mine for r in requests]))
            self._pool.pages(self.layout)[0][outside[0], 3] = 1
        return Sample(0.02, 0.01, 3)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("layout", ["layer_outer", "block_outer"])
def test_bytes_that_arrive_where_they_should_are_accepted(pools: tuple[Pool, Pool], layout: Layout) -> None:
    rng = np.random.default_rng(1)
    verify(FakePeer(*pools, layout), draw(Case("scattered", 4, 2), NUM_BLOCKS, rng), *pools, rng)


@pytest.mark.parametrize(
    ("fault", "message"), [("misses a page", "not those of"), ("writes elsewhere", "nobody asked")]
)
def test_a_byte_that_is_missing_or_lies_elsewhere_is_found(pools: tuple[Pool, Pool], fault: str, message: str) -> None:
    rng = np.random.default_rng(1)
    with pytest.raises(RuntimeError, match=message):
        verify(FakePeer(*pools, fault=fault), draw(Case("scattered", 4, 1), NUM_BLOCKS, rng), *pools, rng)


def test_a_slow_peer_gets_the_fewest_rounds_and_a_fast_one_more(pools: tuple[Pool, Pool]) -> None:
    effort = Effort(min_rounds=2, max_rounds=5, budget_s=0.05)
    got = measure(
        Case("adjacent", 2, 1), [FakePeer(*pools), CopyPeer(*pools)], *pools, effort, np.random.default_rng(0)
    )
    assert got["fake"]["rounds"] == 3  # 20 ms each: the third passes 50 ms
    assert got["fake"]["us"] == 20_000
    assert got["fake"]["post_us"] == 10_000
    assert got["fake"]["gb_per_s"] == round(2 * 1_822_720 / 0.02 / 1e9, 2)
    assert got["copy"]["rounds"] > 3


def test_on_a_cpu_each_of_vllms_peers_is_measured_apart() -> None:
    groups = peer_groups("cpu", peer_names("cpu"))
    assert groups == [["copy", "rows", "pages"], ["vllm_LBNHC"], ["vllm_BLHNC"]]


def test_on_cuda_all_peers_share_the_rounds() -> None:
    assert peer_groups("cuda", peer_names("cuda")) == [list(peer_names("cuda"))]

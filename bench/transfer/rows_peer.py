"""Rows through the product's own agent: ``KVAgent.connect``, ``read``, ``state``, ``finish``."""

import time
from collections.abc import Sequence
from typing import Literal, cast

import numpy as np

from bench.transfer.case import Request
from bench.transfer.geometry import ROW_BYTES, Layout
from bench.transfer.peer import Sample, wait_until
from bench.transfer.pool import Pool
from kv_transfer.agent import KVAgent, ReadState, RowRegion
from kv_transfer.plan import Piece

BACKENDS = ("UCX",)


def region_of(pool: Pool) -> RowRegion:
    """The pool as the agent wants it."""
    memory: Literal["DRAM", "VRAM"] = "VRAM" if pool.memory.is_cuda else "DRAM"
    return RowRegion(pool.address, ROW_BYTES, pool.num_blocks, pool.device_id, memory)


class RowsPeer:
    """One read of whole rows for each request.

    Args:
        does_sort: put the pairs of blocks in the order of the source's ids first, so that runs which fall on both
            sides become runs that rise, and NIXL merges them.
    """

    layout: Layout = "block_outer"

    def __init__(self, pool: Pool, source: tuple[bytes, RowRegion], *, name: str = "rows", does_sort: bool = False):
        self.name, self._does_sort = name, does_sort
        self._agent = KVAgent(f"sink-{name}", BACKENDS)
        self._agent.register(region_of(pool))
        metadata, region = source
        self._reader = self._agent.connect(metadata, region, [Piece(0, 0, ROW_BYTES)])

    def move(self, requests: Sequence[Request]) -> Sample:
        agent, reader = self._agent, self._reader
        pairs = [(request.mine.tolist(), request.theirs.tolist()) for request in requests]  # as a scheduler has them
        began = time.perf_counter()
        reads = [agent.read(reader, *self._in_order(mine, theirs), b"") for mine, theirs in pairs]
        posted = time.perf_counter()
        waiting = list(reads)

        def is_done() -> bool:
            nonlocal waiting
            states = [(read, agent.state(read)) for read in waiting]
            if any(state is ReadState.FAILED for _, state in states):
                raise RuntimeError(f"{self.name}: NIXL reports an error")
            waiting = [read for read, state in states if state is ReadState.PENDING]
            return not waiting

        wait_until(is_done, self.name)
        ended = time.perf_counter()
        num_descriptors = sum(agent.finish(read).num_descriptors for read in reads)
        return Sample(ended - began, posted - began, num_descriptors)

    def _in_order(self, mine: list[int], theirs: list[int]) -> tuple[Sequence[int], Sequence[int]]:
        if not self._does_sort:
            return mine, theirs
        to, of = np.array(mine, dtype=np.int32), np.array(theirs, dtype=np.int32)
        order = of.argsort()
        return cast(Sequence[int], to[order]), cast(Sequence[int], of[order])

    def close(self) -> None:
        self._agent.disconnect(self._reader)
        self._agent.close()

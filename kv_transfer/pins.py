"""Blocks of decode that a given-up read may still write to: taken from vLLM's pool until it has ended."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from kv_transfer.step import DrainNews

logger = logging.getLogger("vllm.tandem.kv_transfer")


class BlockPool(Protocol):
    """What is used of vLLM's pool: blocks by id, and references to them."""

    blocks: Sequence[Any]

    def touch(self, blocks: Sequence[Any]) -> None: ...

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None: ...


class Pins:
    """Owned by the engine core's thread."""

    def __init__(self) -> None:
        self.pool: BlockPool | None = None
        self._reads: Counter[str] = Counter()  # request id -> reads that have not ended, over all ranks
        self._blocks: dict[str, Sequence[int]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def note(self, news: DrainNews, block_ids: Callable[[str], Sequence[int]]) -> None:
        """Take in what the ranks say; called before vLLM frees the blocks of failed requests.

        Args:
            block_ids: request id -> the blocks that its pull was to fill.
        """
        assert self.pool is not None, "vLLM binds its block pool before the first step"
        for request_id, number in news.pinned.items():
            if request_id not in self._blocks:
                self._blocks[request_id] = list(block_ids(request_id))
                self.pool.touch([self.pool.blocks[i] for i in self._blocks[request_id]])
                logger.warning(
                    "request %s: a read into %d blocks was given up and has not ended; they stay unused until it has",
                    request_id,
                    len(self._blocks[request_id]),
                )
            self._reads[request_id] += number
        for request_id, number in news.drained.items():
            self._reads[request_id] -= number
            if self._reads[request_id] == 0:
                del self._reads[request_id]
                self.pool.free_blocks(self.pool.blocks[i] for i in self._blocks.pop(request_id))

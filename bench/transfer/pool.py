"""One side's KV memory: a pool of blocks, seen as rows or as pages, filled, poisoned and compared."""

from dataclasses import dataclass

import numpy as np
import torch

from bench.transfer.geometry import ROW_BYTES, Layout, page_lines

POISON = 0xA5
FILL_SEED = 20261130
FILL_CHUNK_BLOCKS = 64  # random bytes are drawn as int64 temporaries on some devices: keep them small


@dataclass(frozen=True, slots=True)
class Pool:
    """``num_blocks * ROW_BYTES`` bytes on one device, uint8."""

    memory: torch.Tensor
    num_blocks: int

    @classmethod
    def empty(cls, num_blocks: int, device: str) -> "Pool":
        return cls(torch.empty(num_blocks * ROW_BYTES, dtype=torch.uint8, device=device), num_blocks)

    @property
    def address(self) -> int:
        return int(self.memory.data_ptr())

    @property
    def device_id(self) -> int:
        return max(0, int(self.memory.get_device()))

    @property
    def nixl_memory(self) -> str:
        return "VRAM" if self.memory.is_cuda else "DRAM"

    def rows(self) -> torch.Tensor:
        """uint8 [num_blocks, ROW_BYTES]"""
        return self.memory.view(self.num_blocks, ROW_BYTES)

    def pages(self, layout: Layout) -> list[torch.Tensor]:
        """125 views, uint8 [num_blocks, page bytes] each."""
        return [
            self.memory.as_strided((self.num_blocks, size), (stride, 1), start)
            for start, size, stride in page_lines(layout, self.num_blocks).tolist()
        ]

    def fill(self) -> None:
        """Random bytes; the same on every pool of this size and kind of device."""
        generator = torch.Generator(device=self.memory.device).manual_seed(FILL_SEED)
        for chunk in self.memory.split(FILL_CHUNK_BLOCKS * ROW_BYTES):
            chunk.random_(0, 256, generator=generator)
        self.synchronize()

    def poison(self, blocks: np.ndarray, layout: Layout) -> None:
        """Overwrite ``blocks`` (int [n]) with one byte value that says "nothing was written here"."""
        ids = self._ids(blocks)
        for view in self._views(layout):
            view[ids] = POISON
        self.synchronize()

    def is_poisoned(self, blocks: np.ndarray, layout: Layout) -> bool:
        ids = self._ids(blocks)
        return all(bool((view[ids] == POISON).all()) for view in self._views(layout))

    def equals(self, mine: np.ndarray, other: "Pool", theirs: np.ndarray, layout: Layout) -> bool:
        """Whether block ``mine[i]`` holds the bytes of the other pool's ``theirs[i]``, for all i."""
        here, there = self._ids(mine), other._ids(theirs)
        pairs = zip(self._views(layout), other._views(layout), strict=True)
        return all(torch.equal(got[here], sent[there].to(got.device)) for got, sent in pairs)

    def synchronize(self) -> None:
        if self.memory.is_cuda:
            torch.cuda.synchronize(self.memory.device)

    def _views(self, layout: Layout) -> list[torch.Tensor]:
        return [self.rows()] if layout == "block_outer" else self.pages(layout)

    def _ids(self, blocks: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(blocks.astype(np.int64), device=self.memory.device)

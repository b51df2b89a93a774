"""Checks of what all ops on a paged cache are given: the pool, the block table and the context lengths."""

import torch

from msa_model.config import BLOCK_SIZE
from msa_model.pages import SLOT_BYTES, STATE_BYTES

ALIGNMENT = 16
"""Bytes: kernels read whole 16-byte words of a page."""


def check_pool(pool: torch.Tensor, slot: int) -> None:
    """Raise ValueError unless ``pool`` is uint8 [num_blocks, num_slots, 128, 72] with contiguous, aligned pages.

    Blocks may be any multiple of 16 bytes apart. ``slot`` must be one of its slots.
    """
    inner = (SLOT_BYTES, STATE_BYTES, 1)
    if pool.dtype != torch.uint8 or pool.shape[2:] != (BLOCK_SIZE, STATE_BYTES) or pool.stride()[1:] != inner:
        raise ValueError(
            f"a pool must be uint8 [blocks, slots, {BLOCK_SIZE}, {STATE_BYTES}] with contiguous pages, "
            f"not {pool.dtype} {tuple(pool.shape)} with strides {pool.stride()}"
        )
    if pool.stride(0) % ALIGNMENT or pool.data_ptr() % ALIGNMENT:
        raise ValueError(f"blocks must begin at multiples of {ALIGNMENT} bytes, not {pool.stride(0)} bytes apart")
    if not 0 <= slot < pool.shape[1]:
        raise ValueError(f"slot {slot} is not one of the pool's {pool.shape[1]}")


def check_block_table(block_table: torch.Tensor, seq_lens: torch.Tensor) -> tuple[int, int]:
    """(requests, blocks) of ``block_table`` int32 [R, M] and ``seq_lens`` int32 [R]; ValueError for anything else."""
    is_table = block_table.dim() == 2 and block_table.dtype == torch.int32 and block_table.stride(1) == 1
    if not is_table or seq_lens.shape != block_table.shape[:1]:
        raise ValueError(
            f"block_table must be int32 [R, M] and seq_lens [R], "
            f"not {block_table.dtype} {tuple(block_table.shape)} and {tuple(seq_lens.shape)}"
        )
    if seq_lens.dtype != torch.int32 or not seq_lens.is_contiguous():
        raise ValueError(f"seq_lens must be contiguous int32, not {seq_lens.dtype}")
    return block_table.shape[0], block_table.shape[1]

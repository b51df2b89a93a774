"""Batches for sparse attention: pages of random values among stale bytes, and chosen blocks as selection gives them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from msa_model.config import BLOCK_SIZE, HEAD_DIM
from msa_model.pages import STATE_BYTES, SlotPages

STALE = 0xFF  # an E4M3 scale of these bits is NaN
# In a pool of two layers, this is the second one.
NUM_LAYERS, KEY_SLOT = 2, 2
# Block numbers that a stale entry of a table may hold: no block of any pool.
STALE_BLOCK = 1 << 24


@dataclass
class AttentionBatch:
    """What both sparse attention ops take, on one device."""

    query: torch.Tensor
    pool: torch.Tensor
    chosen: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor

    @property
    def pages(self) -> tuple[torch.Tensor, torch.Tensor, int, int, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The arguments that ops and twins begin with."""
        slots = (KEY_SLOT, 2 * NUM_LAYERS)
        return (self.query, self.pool, *slots, self.chosen, self.block_table, self.seq_lens)


def make_batch(
    seq_lens: Sequence[int],
    query_lens: Sequence[int],
    *,
    kv_heads: int = 1,
    group_size: int = 16,
    topk: int = 16,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> AttentionBatch:
    """Requests of these context and query lengths (the query tokens are the last of the context; 0: padding)."""
    generator = torch.Generator().manual_seed(seed)
    num_blocks = [-(-seq_len // BLOCK_SIZE) for seq_len in seq_lens]
    width = max(*num_blocks, topk) + 2
    order = iter((torch.randperm(sum(num_blocks), generator=generator) + 1).tolist())
    table = torch.full((len(seq_lens), width), STALE_BLOCK, dtype=torch.int32)
    for row, count in enumerate(num_blocks):
        table[row, :count] = torch.tensor(list(itertools.islice(order, count)), dtype=torch.int32)
    pool = random_pool(sum(num_blocks) + 1, 2 * NUM_LAYERS * kv_heads, device, seed)
    for row, (seq_len, count) in enumerate(zip(seq_lens, num_blocks, strict=True)):
        if count:
            make_stale(pool, int(table[row, count - 1]), seq_len - (count - 1) * BLOCK_SIZE)
    positions = [
        seq_len - query_len + row
        for seq_len, query_len in zip(seq_lens, query_lens, strict=True)
        for row in range(query_len)
    ]
    chosen = torch.stack([choose(p, kv_heads, topk, width, generator) for p in positions])
    query = torch.randn(len(positions), kv_heads * group_size, HEAD_DIM, generator=generator)
    starts = torch.tensor([0, *itertools.accumulate(query_lens)], dtype=torch.int32)
    lengths = torch.tensor(seq_lens, dtype=torch.int32)
    return AttentionBatch(
        query.to(dtype).to(device),
        pool,
        chosen.int().to(device),
        table.to(device),
        lengths.to(device),
        starts.to(device),
    )


def random_pool(num_blocks: int, num_slots: int, device: str, seed: int) -> torch.Tensor:
    """Pages of any values with scales from 2^-3 to 1, in rows that go on after them."""
    generator = torch.Generator(device).manual_seed(seed)
    rows = torch.randint(
        0,
        256,
        (num_blocks, num_slots + 1, BLOCK_SIZE, STATE_BYTES),
        dtype=torch.uint8,
        device=device,
        generator=generator,
    )
    pool = rows[:, :num_slots]
    scale = SlotPages(pool).scale
    scale.copy_(torch.randint(0x20, 0x39, scale.shape, dtype=torch.uint8, device=device, generator=generator))
    return pool


def make_stale(pool: torch.Tensor, block: int, num_tokens: int) -> None:
    """Let all tokens of a block from ``num_tokens`` on be unwritten."""
    pages = SlotPages(pool)
    pages.data[block, :, num_tokens:] = STALE
    pages.scale[block, :, num_tokens:] = STALE


def choose(position: int, kv_heads: int, topk: int, width: int, generator: torch.Generator) -> torch.Tensor:
    """[kv_heads, topk] blocks of a query at ``position``, rising: the newest and random others, or surplus ones."""
    newest = position // BLOCK_SIZE
    if newest < topk:
        return torch.arange(topk).expand(kv_heads, -1)
    others = [torch.randperm(newest, generator=generator)[: topk - 1] for _ in range(kv_heads)]
    return torch.stack([torch.cat([some, torch.tensor([newest])]).sort().values for some in others])

"""Sparse attention of decode steps, ours on NVFP4 pages against upstream's on bf16 and FP8 ones."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from bench.kernels.case import TP1, TP4_RANK, Bench, Call, Case, Floor, Size, num_sets
from bench.kernels.index_cases import INT_OPS_PER_8_VALUES, ROW_BYTES
from bench.kernels.peer import upstream
from msa_model.config import BLOCK_SIZE, HEAD_DIM
from msa_model.ops.sparse_decode import sparse_attention_decode
from msa_model.pages import SCALES_OFFSET, SLOT_BYTES, STATE_BYTES
from msa_model.reference.block_attention import SCALE

TOPK = 16
# 151 MB of keys and values for one head: what is chosen is rarely in the L2.
POOL_BLOCKS = 8192
SIZES = [
    *(Size(TP4_RANK, 32 * 1024, batch, rows) for batch, rows in ((1, 1), (32, 1), (32, 8))),
    *(Size(TP4_RANK, 128 * 1024, batch, rows) for batch, rows in ((1, 8), (8, 1), (8, 8), (32, 1), (32, 8), (64, 1))),
    *(Size(TP4_RANK, 512 * 1024, batch, rows) for batch, rows in ((1, 1), (8, 1), (8, 8))),
    *(Size(TP1, 32 * 1024, batch, rows) for batch, rows in ((1, 1), (32, 8), (64, 1))),
    Size(TP1, 128 * 1024, 8, 8),
]


def cases(bench: Bench) -> Iterator[Case]:
    """One case a size."""
    for size in SIZES:
        yield Case("attention", size, floor_of(size), functools.partial(_prepare, bench, size))


def floor_of(size: Size) -> Floor:
    """Every chosen block is read once for each query row and KV head: rows that share one by chance are not counted."""
    chosen_keys = size.batch * size.query_rows * size.shape.kv_heads * TOPK * BLOCK_SIZE
    heads_per_group = size.shape.query_heads // size.shape.kv_heads
    return Floor(
        chosen_keys * 2 * STATE_BYTES,
        4 * chosen_keys * heads_per_group * HEAD_DIM,
        2 * chosen_keys * HEAD_DIM // 8 * INT_OPS_PER_8_VALUES,
    )


@functools.lru_cache(maxsize=1)
def key_value_pool(kv_heads: int) -> torch.Tensor:
    """uint8 [blocks, 2 x heads, 128, 72], one layer's K and V slots of each row: random values, scales 0.06 to 2."""
    memory = torch.empty(POOL_BLOCKS * ROW_BYTES, dtype=torch.uint8, device="cuda")
    slots = memory.as_strided((POOL_BLOCKS, 2 * kv_heads, SLOT_BYTES), (ROW_BYTES, SLOT_BYTES, 1))
    for first in range(0, POOL_BLOCKS, 1024):
        piece = slots[first : first + 1024]
        piece[...] = torch.randint(256, piece.shape, dtype=torch.uint8, device="cuda")
        scales = piece[..., SCALES_OFFSET:]
        scales[...] = torch.randint(24, 64, scales.shape, dtype=torch.uint8, device="cuda")
    return memory.as_strided(
        (POOL_BLOCKS, 2 * kv_heads, BLOCK_SIZE, STATE_BYTES), (ROW_BYTES, SLOT_BYTES, STATE_BYTES, 1)
    )


@functools.lru_cache(maxsize=1)
def upstream_cache(kv_heads: int, dtype: torch.dtype) -> torch.Tensor:
    """Upstream's cache [blocks, heads, 128, 256], keys before values."""
    shape = (POOL_BLOCKS, kv_heads, BLOCK_SIZE, 2 * HEAD_DIM)
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16).to(dtype)


def choices(bench: Bench, size: Size) -> list[torch.Tensor]:
    """int32 [T, G, k] blocks in rising order, to be taken in turns: a row's own, and at random others before it."""
    block = torch.arange(size.context // BLOCK_SIZE, device="cuda")
    position = torch.arange(size.context - size.query_rows, size.context, device="cuda").repeat(size.batch)
    own = (position // BLOCK_SIZE)[:, None, None]
    found = []
    for _ in range(num_sets(bench, floor_of(size).read_bytes)):
        liking = torch.rand(len(position), size.shape.kv_heads, len(block), device="cuda")
        liking = liking.masked_fill(block > own, -1.0).masked_fill(block == own, 2.0)
        found.append(liking.topk(TOPK).indices.sort().values.int())
    return found


def batch_of(size: Size) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries [T, H, 128], lengths and a table of random blocks."""
    query = torch.randn(size.batch * size.query_rows, size.shape.query_heads, HEAD_DIM, device="cuda").bfloat16()
    seq_lens = torch.full((size.batch,), size.context, dtype=torch.int32, device="cuda")
    blocks = size.context // BLOCK_SIZE
    return query, seq_lens, torch.randint(POOL_BLOCKS, (size.batch, blocks), dtype=torch.int32, device="cuda")


def _prepare(bench: Bench, size: Size) -> dict[str, Sequence[Call]]:
    query, seq_lens, table = batch_of(size)
    chosen_sets, out = choices(bench, size), torch.empty_like(query)
    pool = key_value_pool(size.shape.kv_heads)

    def ours(chosen: torch.Tensor) -> None:
        sparse_attention_decode(query, pool, 0, 2, chosen, table, seq_lens, out=out)

    made: dict[str, Sequence[Call]] = {"ours": [functools.partial(ours, chosen) for chosen in chosen_sets]}
    module = upstream("sparse_attn", bench.peer_folder)
    if module is not None:
        for name, dtype in (("upstream_bf16", torch.bfloat16), ("upstream_fp8", torch.float8_e4m3fn)):
            cache = upstream_cache(size.shape.kv_heads, dtype)
            made[name] = [
                functools.partial(
                    _upstream, module, size, query, cache, chosen.transpose(0, 1).contiguous(), table, seq_lens, out
                )
                for chosen in chosen_sets
            ]
    return made


def _upstream(
    module: Any,
    size: Size,
    query: torch.Tensor,
    cache: torch.Tensor,
    chosen: torch.Tensor,
    table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
) -> object:
    return module.minimax_m3_sparse_attn_decode(
        query, cache, chosen, table, seq_lens, size.shape.kv_heads, SCALE, out, size.query_rows
    )

"""Index score and top-k together, ours on NVFP4 pages against upstream's on bf16 and FP8 keys."""

import functools
from collections.abc import Iterator, Sequence

import torch

from bench.kernels.case import TP1, TP4_RANK, Bench, Call, Case, Floor, Size, num_sets
from bench.kernels.peer import upstream
from msa_model.config import BLOCK_SIZE, HEAD_DIM
from msa_model.ops.index_score import score_decode
from msa_model.ops.select import select_decode
from msa_model.pages import DATA_BYTES, SCALES_OFFSET, SLOT_BYTES, STATE_BYTES

TOPK, LOCAL = 16, 1
# Fact K2: a block's row on a rank of TP4; pages of one layer are that far apart.
ROW_BYTES = 1_822_720
POOL_BLOCKS = 33_792
# Decoding to E4M3 without scales: a shift or mask for each of two halves of a word of eight values.
INT_OPS_PER_8_VALUES = 7
SIZES = [
    *(Size(TP4_RANK, 32 * 1024, batch, rows) for batch, rows in ((1, 1), (32, 1), (32, 8))),
    *(Size(TP4_RANK, 128 * 1024, batch, rows) for batch, rows in ((8, 1), (8, 8), (32, 1), (32, 8))),
    *(Size(TP4_RANK, 512 * 1024, batch, rows) for batch, rows in ((1, 1), (8, 1), (8, 8))),
    Size(TP1, 32 * 1024, 32, 8),
    Size(TP1, 128 * 1024, 8, 8),
    Size(TP1, 512 * 1024, 8, 1),
]


def cases(bench: Bench) -> Iterator[Case]:
    """One case a size."""
    for size in SIZES:
        yield Case("index", size, _floor(size), functools.partial(_prepare, bench, size))


def _floor(size: Size) -> Floor:
    keys = size.batch * size.context
    rows = size.query_rows * size.shape.kv_heads
    return Floor(keys * STATE_BYTES, 2 * keys * HEAD_DIM * rows, keys * HEAD_DIM // 8 * INT_OPS_PER_8_VALUES)


@functools.lru_cache(maxsize=1)
def nvfp4_pool(num_blocks: int = POOL_BLOCKS, row_bytes: int = ROW_BYTES) -> torch.Tensor:
    """uint8 [num_blocks, 1, 128, 72], one layer's slot of each row: random values, scales between 0.06 and 2."""
    memory = torch.empty(num_blocks * row_bytes, dtype=torch.uint8, device="cuda")
    slots = memory.as_strided((num_blocks, SLOT_BYTES), (row_bytes, 1))
    for first in range(0, num_blocks, 4096):
        piece = slots[first : first + 4096]
        piece[:, :SCALES_OFFSET] = torch.randint(256, (len(piece), SCALES_OFFSET), dtype=torch.uint8, device="cuda")
        scales = SLOT_BYTES - BLOCK_SIZE * DATA_BYTES
        piece[:, SCALES_OFFSET:] = torch.randint(24, 64, (len(piece), scales), dtype=torch.uint8, device="cuda")
    return memory.as_strided((num_blocks, 1, BLOCK_SIZE, STATE_BYTES), (row_bytes, SLOT_BYTES, STATE_BYTES, 1))


def _prepare(bench: Bench, size: Size) -> dict[str, Sequence[Call]]:
    pool = nvfp4_pool()
    blocks = size.context // BLOCK_SIZE
    rows = size.batch * size.query_rows
    tables = block_tables(bench, len(pool), size.batch, blocks)
    seq_lens = torch.full((size.batch,), size.context, dtype=torch.int32, device="cuda")
    query = torch.randn(rows, size.shape.kv_heads, HEAD_DIM, device="cuda").bfloat16()
    score = torch.empty(rows, size.shape.kv_heads, blocks, device="cuda")
    chosen = torch.empty(rows, size.shape.kv_heads, TOPK, dtype=torch.int32, device="cuda")

    def ours(table: torch.Tensor) -> None:
        score_decode(query, pool, 0, table, seq_lens, lets_next_start=True, out=score)
        select_decode(score, seq_lens, topk_blocks=TOPK, local_blocks=LOCAL, follows_score=True, out=chosen)

    made: dict[str, Sequence[Call]] = {"ours": [functools.partial(ours, table) for table in tables]}
    module = upstream("index_topk", bench.peer_folder)
    if module is not None:
        for name, dtype in (("upstream_bf16", torch.bfloat16), ("upstream_fp8", torch.float8_e4m3fn)):
            keys = torch.randn(len(pool), BLOCK_SIZE, HEAD_DIM, device="cuda", dtype=torch.bfloat16).to(dtype)
            made[name] = [
                functools.partial(_upstream, module, size, query.to(dtype), keys, table, seq_lens) for table in tables
            ]
    return made


def _upstream(
    module: object,
    size: Size,
    query: torch.Tensor,
    keys: torch.Tensor,
    table: torch.Tensor,
    seq_lens: torch.Tensor,
) -> object:
    decode = module.minimax_m3_index_decode  # type: ignore[attr-defined]
    heads, rows = size.shape.kv_heads, size.query_rows
    return decode(query, keys, table, seq_lens, size.context, TOPK, 0, LOCAL, heads, rows, rows)


def block_tables(bench: Bench, num_blocks: int, batch: int, blocks: int) -> list[torch.Tensor]:
    """int32 [batch, blocks] tables over random blocks of the pool, no block twice in one, to be taken in turns."""
    order = torch.randperm(num_blocks, device="cuda").int()
    count = batch * blocks
    sets = num_sets(bench, count * SLOT_BYTES)
    return [order.roll(-number * count)[:count].view(batch, blocks).contiguous() for number in range(sets)]

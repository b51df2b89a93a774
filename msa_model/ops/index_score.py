"""Block scores of the indexer over the paged NVFP4 index cache (fact M2): checks, tile choice, launch.

Index queries are rounded to E4M3 with saturation, once (facts M4 and D2); keys are exact products of value and scale,
or rounded to E4M3 where the target's decoding does that. The twin is ``msa_model.reference.index_score``.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from msa_model.config import HEAD_DIM
from msa_model.ops.kernels.index_score import index_score_decode_kernel, index_score_prefill_kernel
from msa_model.ops.nvfp4 import e4m3_products
from msa_model.ops.pool import check_block_table, check_pool
from msa_model.ops.target import Target, target_of

MAX_QUERY_ROWS = 8
# Rows up to which scales are applied to results, which have eight parts a row, instead of to values.
MAX_ROWS_PER_RESULT = {"sm_90": 8, "sm_107": 4, "other": 8}
PROGRAMS_PER_SM = 4
# Prefill on H200: 128 queries of four warps were fastest of 64, 128 and 256, with a pipeline of 4.
PREFILL_COLUMNS, PREFILL_STAGES = 128, 4
PREFILL_PROGRAMS_PER_SM, PREFILL_MIN_BLOCKS = 16, 16


@dataclass(frozen=True, kw_only=True)
class ScoreTiling:
    """How the decode kernel cuts its work."""

    applies_per_result: bool
    """Whether scales are applied once per result of the matrix product instead of once per value."""
    rows: int
    """Columns for query rows and heads, a power of two."""
    tile: int
    """Keys of one matrix product."""
    blocks: int
    """Cache blocks that a tile is taken from."""
    steps: int
    """Times that a program takes so many blocks."""
    stages: int
    num_warps: int


def score_tiling(target: Target, num_rows: int, num_requests: int, num_blocks: int) -> ScoreTiling:
    """Tiles for ``num_rows`` query rows and heads of each of the requests, with up to ``num_blocks`` blocks each.

    The choices are those that were fastest on H200 at 32K to 512K tokens (bench/kernels).
    """
    rows = triton.next_power_of_2(num_rows)
    applies_per_result = rows <= MAX_ROWS_PER_RESULT.get(target.name, 0)
    if not applies_per_result:
        rows = max(16, rows)
    tile, blocks, stages = 128, 1, 4
    if rows <= 2:
        blocks, stages = rows, 7 if rows == 1 else 5
    elif target.has_wgmma:
        # Half tiles need half of the accumulators, and more programs fit a multiprocessor.
        tile, blocks, stages = (64, 2, 5) if applies_per_result else (64, 4, 3)
    # A few programs for each multiprocessor, but none so long that the last wave is felt.
    wanted = triton.cdiv(num_requests * num_blocks, blocks * PROGRAMS_PER_SM * target.num_sms)
    steps = min(triton.next_power_of_2(wanted), 16 if blocks * wanted <= 16 else 8)
    return ScoreTiling(
        applies_per_result=applies_per_result,
        rows=rows,
        tile=tile,
        blocks=blocks,
        steps=steps,
        stages=stages,
        num_warps=4,
    )


def score_decode(
    index_query: torch.Tensor,
    pool: torch.Tensor,
    slot: int,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    lets_next_start: bool = False,
    tiling: ScoreTiling | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Largest dot product of each visible block, float32 [T, G, M]; other entries are left as they were.

    ``index_query`` [T, G, 128] of any float dtype, T = R x Q tokens, request-major, Q from 1 to 8; contiguous.
    ``pool`` uint8 [num_blocks, num_slots, 128, 72], whose ``slot`` holds this layer's index keys.
    ``block_table`` int32 [R, M], stale behind a request's blocks; ``seq_lens`` int32 [R], the step's tokens included,
    0 for padding. Row j of a request is at position seq_len - Q + j and sees the keys up to there.
    ``lets_next_start``: the next kernel on the stream waits for this one by itself (``select_decode`` does).
    Raises ValueError for other shapes or types.
    """
    tokens, heads, _ = index_query.shape
    requests, num_blocks = check_block_table(block_table, seq_lens)
    check_pool(pool, slot)
    if tokens % requests or not 1 <= tokens // requests <= MAX_QUERY_ROWS:
        raise ValueError(f"{requests} requests can't have {tokens} query rows: 1 to {MAX_QUERY_ROWS} each, all alike")
    out = _checked(index_query, num_blocks, out)
    target = target_of(pool.device)
    num_rows = tokens // requests * heads
    tiling = tiling or score_tiling(target, num_rows, requests, num_blocks)
    index_score_decode_kernel[(triton.cdiv(num_blocks, tiling.blocks * tiling.steps), requests)](
        index_query,
        pool[:, slot],
        block_table,
        seq_lens,
        out,
        e4m3_products(pool.device),
        HEAD_DIM,
        pool.stride(0),
        block_table.stride(0),
        num_blocks,
        num_rows,
        heads,
        TARGET=target.name,
        OPERAND=operand_type(target, tiling.applies_per_result),
        PER_RESULT=tiling.applies_per_result,
        ROWS=tiling.rows,
        TILE=tiling.tile,
        BLOCKS=tiling.blocks,
        STEPS=tiling.steps,
        STAGES=tiling.stages,
        LETS_START=lets_next_start and target.has_early_start,
        num_warps=tiling.num_warps,
    )
    return out


def score_prefill(
    index_query: torch.Tensor,
    pool: torch.Tensor,
    slot: int,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    max_query_len: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same for requests of unequal length, whose query tokens are the last of their context.

    ``query_start_loc`` int32 [R + 1]: request r has queries [r] to [r + 1]; ``max_query_len`` bounds their number. The
    scores of T queries take T x G x M x 4 bytes: cut long prompts into pieces. Raises ValueError as ``score_decode``.
    """
    heads = index_query.shape[1]
    requests, num_blocks = check_block_table(block_table, seq_lens)
    check_pool(pool, slot)
    if query_start_loc.shape != (requests + 1,) or query_start_loc.dtype != torch.int32:
        raise ValueError(f"query_start_loc must be int32 [{requests + 1}], not {tuple(query_start_loc.shape)}")
    out = _checked(index_query, num_blocks, out)
    target = target_of(pool.device)
    tokens_per_program = max(1, PREFILL_COLUMNS // heads)
    columns = triton.next_power_of_2(tokens_per_program * heads)
    num_tiles = triton.cdiv(max_query_len, tokens_per_program)
    # Several waves of programs even out what the causal edge leaves uneven, while each has blocks to loop over.
    pieces = triton.cdiv(PREFILL_PROGRAMS_PER_SM * target.num_sms, num_tiles * requests)
    blocks_per_program = max(min(num_blocks, PREFILL_MIN_BLOCKS), triton.cdiv(num_blocks, pieces))
    index_score_prefill_kernel[(num_tiles, requests, triton.cdiv(num_blocks, blocks_per_program))](
        index_query,
        pool[:, slot],
        block_table,
        seq_lens,
        query_start_loc,
        out,
        e4m3_products(pool.device),
        HEAD_DIM,
        pool.stride(0),
        block_table.stride(0),
        num_blocks,
        heads,
        blocks_per_program,
        TARGET=target.name,
        OPERAND=operand_type(target, False),
        TOKENS=tokens_per_program,
        COLUMNS=columns,
        STAGES=PREFILL_STAGES,
        num_warps=4,
    )
    return out


def _checked(index_query: torch.Tensor, num_blocks: int, out: torch.Tensor | None) -> torch.Tensor:
    """The output, made or checked."""
    tokens, heads, dim = index_query.shape
    if dim != HEAD_DIM or not index_query.is_contiguous():
        raise ValueError(f"index queries must be contiguous [T, G, {HEAD_DIM}], not {tuple(index_query.shape)}")
    if out is None:
        return torch.empty(tokens, heads, num_blocks, dtype=torch.float32, device=index_query.device)
    if out.shape != (tokens, heads, num_blocks) or out.dtype != torch.float32 or not out.is_contiguous():
        raise ValueError(f"the output must be contiguous float32 [{tokens}, {heads}, {num_blocks}]")
    return out


def operand_type(target: Target, applies_per_result: bool) -> tl.dtype:
    """Format of both operands of the matrix product: what decoding yields."""
    if target.rounds_products or (applies_per_result and target.name != "sm_107"):
        return tl.float8e4nv
    return tl.float16

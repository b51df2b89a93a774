"""Block scores of the indexer: dot products with every index key of a block, and their maximum (fact M2).

One index-key head serves all index queries. A program takes ``BLOCKS`` cache blocks of one request for each of its
``STEPS`` steps. Keys are the left operand of the matrix product, so that decoded values stay in
registers; the query rows of the request, and its index heads, are the columns of the right one.

With ``PER_RESULT`` the values are decoded without their scales, and the right operand has a column for each row and
each group of 16 dimensions, which is zero outside of its group::

    column  group x ROWS + row        sum over the group's 16 dimensions, exact values
    score   [key, row] = sum over groups of scale[key, group] x column[key, group, row]

so that a scale is applied once per result and group instead of once per value.

A tile is TILE keys, TILE / BLOCKS of each block; a step has as many tiles as its blocks need. Keys are dealt to rows 16
at a time, block by block, so that a warp of four gets whole blocks if BLOCKS is 4 and takes their maximum by itself::

    row m of tile i   ->  block (m / 16) % BLOCKS, key TILE / BLOCKS x i + m / (16 x BLOCKS) x 16 + m % 16

Where keys are decoded to halves (``_renames``), a thread has 16 neighbouring bytes of a token, and Hopper's matrix
units want it to hold two and two neighbours of 16. As a product doesn't care about the order of what it sums over, nor
we about that of keys, both are loaded in the order that makes the difference a mere renaming of registers.
"""

import triton
import triton.language as tl

from msa_model.ops.kernels.e4m3 import to_e4m3
from msa_model.ops.kernels.nvfp4_decode import (
    decode_scaled,
    decode_unscaled,
    first_dims,
    scale_to_f32,
    scaled_factor,
    second_dims,
    unscaled_factor,
)

BLOCK = tl.constexpr(128)
SCALES_OFFSET = tl.constexpr(8192)


@triton.jit
def load_query_columns(
    query_ptr,
    row_stride,
    num_rows,
    dims,
    TARGET: tl.constexpr,
    ROWS: tl.constexpr,
    PER_RESULT: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """The right operand [64, columns], rounded to E4M3: query rows at ``dims`` [64], zero where a column has none."""
    COLUMNS: tl.constexpr = max(16, ROWS * 8) if PER_RESULT else ROWS
    column = tl.arange(0, COLUMNS)
    row = column % ROWS
    is_wanted = (row < num_rows)[None, :] & (dims >= 0)[:, None]
    if PER_RESULT:
        is_wanted = is_wanted & ((column // ROWS)[None, :] == (dims // 16)[:, None])
    query = tl.load(query_ptr + row[None, :] * row_stride + dims[:, None], mask=is_wanted, other=0.0)
    if query_ptr.dtype.element_ty != tl.float8e4nv:
        query = to_e4m3(query.to(tl.float32), TARGET)
    return query.to(OPERAND)


@triton.jit
def score_factor(TARGET: tl.constexpr, PER_RESULT: tl.constexpr):
    """What results of ``score_tile`` have to be multiplied by; positive, so it can wait until after a maximum."""
    if PER_RESULT:
        return unscaled_factor(TARGET)
    return scaled_factor(TARGET)


@triton.jit
def _renames(TARGET: tl.constexpr, PER_RESULT: tl.constexpr):
    return not PER_RESULT and (TARGET == "sm_90" or TARGET == "other")


@triton.jit
def _renamed(tile):
    """[N, 64] as loaded, rows (64s, 2, warp, 8) and columns (quad, 4, 2, 2), as the matrix units name its registers."""
    N: tl.constexpr = tile.shape[0]
    tile = tl.reshape(tile, (N // 64, 2, 4, 8, 4, 4, 2, 2))
    return tl.reshape(tl.permute(tile, (0, 2, 1, 3, 5, 6, 4, 7)), (N, 64))


@triton.jit
def _loaded_row(row):
    """The row of the product that each loaded ``row`` becomes by ``_renamed``."""
    return row // 64 * 64 + row // 8 % 4 * 16 + row // 32 % 2 * 8 + row % 8


@triton.jit
def _loaded_column(column):
    """The loaded column that each ``column`` of ``_renamed`` comes from."""
    return column // 2 % 4 * 16 + column // 16 * 4 + column // 8 % 2 * 2 + column % 2


@triton.jit
def score_tile(
    data,
    scale,
    first_query,
    second_query,
    table_ptr,
    TARGET: tl.constexpr,
    ROWS: tl.constexpr,
    PER_RESULT: tl.constexpr,
):
    """float32 [keys, ROWS] dot products of a tile's keys and the query rows, divided by ``score_factor``."""
    if PER_RESULT:
        first, second = decode_unscaled(data, TARGET)
        parts = tl.dot(second, second_query, tl.dot(first, first_query))
        if ROWS == 1:  # eight of the 16 columns, the fewest that Hopper's FP8 units get from the compiler, are zero
            parts = tl.sum(tl.reshape(parts, (data.shape[0], 2, 8)), axis=1)
        parts = tl.reshape(parts, (data.shape[0], 8, ROWS))
        return tl.sum(parts * scale_to_f32(scale, TARGET, ROWS == 8)[:, :, None], axis=1)
    else:
        first, second = decode_scaled(data, scale, table_ptr, TARGET)
        if _renames(TARGET, PER_RESULT):
            first, second = _renamed(first), _renamed(second)
        return tl.dot(second, second_query, tl.dot(first, first_query))


@triton.jit(do_not_specialize=["score_stride", "num_rows", "num_heads"])
def index_score_decode_kernel(
    query_ptr,  # [T, G, 128], rows of a request and heads of a row contiguous in steps of row_stride
    pool_ptr,  # uint8, at the slot of the layer
    block_table_ptr,  # int32 [R, M]
    seq_lens_ptr,  # int32 [R]
    score_ptr,  # float32 [T * G, M]
    table_ptr,
    row_stride,
    block_stride,
    block_table_stride,
    score_stride,
    num_rows,  # query rows x index heads of a request
    num_heads,
    TARGET: tl.constexpr,
    OPERAND: tl.constexpr,
    PER_RESULT: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCKS: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
    LETS_START: tl.constexpr,
):
    """Scores of BLOCKS x STEPS blocks of one request; those behind the context are left alone."""
    if LETS_START:
        tl.extra.cuda.gdc_launch_dependents()
    request = tl.program_id(1)
    seq_len = tl.load(seq_lens_ptr + request)
    first_block = tl.program_id(0) * BLOCKS * STEPS
    num_blocks = tl.cdiv(seq_len, BLOCK)
    if first_block >= num_blocks:
        return
    column = tl.arange(0, 64)
    query_column = _loaded_column(column) if _renames(TARGET, PER_RESULT) else column
    query_row_ptr = query_ptr + request.to(tl.int64) * num_rows * row_stride
    first_query = load_query_columns(
        query_row_ptr, row_stride, num_rows, first_dims(query_column, TARGET), TARGET, ROWS, PER_RESULT, OPERAND
    )
    second_query = load_query_columns(
        query_row_ptr, row_stride, num_rows, second_dims(query_column, TARGET), TARGET, ROWS, PER_RESULT, OPERAND
    )
    tile_row = tl.arange(0, TILE)
    block_of = tile_row // 16 % BLOCKS
    key = tile_row // (16 * BLOCKS) * 16 + tile_row % 16
    loaded_row = _loaded_row(tile_row) if _renames(TARGET, PER_RESULT) else tile_row
    loaded_block = loaded_row // 16 % BLOCKS
    loaded_key = loaded_row // (16 * BLOCKS) * 16 + loaded_row % 16
    row = tl.arange(0, ROWS)
    position = seq_len - (num_rows - row + num_heads - 1) // num_heads
    table_row_ptr = block_table_ptr + request.to(tl.int64) * block_table_stride
    score_row_ptr = score_ptr + (request.to(tl.int64) * num_rows + row) * score_stride
    end = tl.minimum(first_block + BLOCKS * STEPS, num_blocks)
    for start in tl.range(first_block, end, BLOCKS, num_stages=STAGES):
        page = tl.load(table_row_ptr + start).to(tl.int64)
        for number in tl.static_range(1, BLOCKS):
            block = tl.minimum(start + number, num_blocks - 1)
            page = tl.where(loaded_block == number, tl.load(table_row_ptr + block).to(tl.int64), page)
        slot_ptr = pool_ptr + page * block_stride
        best = tl.full((TILE, ROWS), float("-inf"), tl.float32)
        for piece in tl.static_range(BLOCKS * BLOCK // TILE):
            key_ptr = slot_ptr + (loaded_key + piece * (TILE // BLOCKS)) * 64
            data = tl.load(key_ptr[:, None] + column[None, :])
            key_ptr = slot_ptr + SCALES_OFFSET + (loaded_key + piece * (TILE // BLOCKS)) * 8
            scale = tl.load(key_ptr[:, None] + tl.arange(0, 8)[None, :])
            score = score_tile(data, scale, first_query, second_query, table_ptr, TARGET, ROWS, PER_RESULT)
            key_position = (start + block_of) * BLOCK + key + piece * (TILE // BLOCKS)
            best = tl.maximum(best, tl.where(key_position[:, None] <= position[None, :], score, float("-inf")))
        best = tl.max(tl.max(tl.reshape(best, (TILE // BLOCKS // 16, BLOCKS, 16, ROWS)), axis=2), axis=0)
        block = start + tl.arange(0, BLOCKS)
        is_kept = (block < num_blocks)[:, None] & (row < num_rows)[None, :]
        best = best * score_factor(TARGET, PER_RESULT)
        tl.store(score_row_ptr[None, :] + block[:, None], best, mask=is_kept)


@triton.jit(do_not_specialize=["score_stride", "num_heads", "blocks_per_program"])
def index_score_prefill_kernel(
    query_ptr,  # [T, G, 128]
    pool_ptr,
    block_table_ptr,
    seq_lens_ptr,
    query_start_ptr,  # int32 [R + 1]
    score_ptr,  # float32 [T * G, M]
    table_ptr,
    row_stride,
    block_stride,
    block_table_stride,
    score_stride,
    num_heads,
    blocks_per_program,
    TARGET: tl.constexpr,
    OPERAND: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Scores of a piece of the context for TOKENS query tokens of one request and all its index heads."""
    request = tl.program_id(1)
    query_start = tl.load(query_start_ptr + request)
    num_tokens = tl.load(query_start_ptr + request + 1) - query_start
    first_token = tl.program_id(0) * TOKENS
    if first_token >= num_tokens:
        return
    num_tokens = tl.minimum(num_tokens - first_token, TOKENS)
    first_position = (
        tl.load(seq_lens_ptr + request) - tl.load(query_start_ptr + request + 1) + query_start + first_token
    )
    first_block = tl.program_id(2) * blocks_per_program
    end = tl.minimum(first_block + blocks_per_program, (first_position + num_tokens - 1) // BLOCK + 1)
    if first_block >= end:
        return
    first_row = (query_start + first_token).to(tl.int64) * num_heads
    num_rows = num_tokens * num_heads
    dim = tl.arange(0, 64)
    query_row_ptr = query_ptr + first_row * row_stride
    first_query = load_query_columns(
        query_row_ptr, row_stride, num_rows, first_dims(dim, TARGET), TARGET, COLUMNS, False, OPERAND
    )
    second_query = load_query_columns(
        query_row_ptr, row_stride, num_rows, second_dims(dim, TARGET), TARGET, COLUMNS, False, OPERAND
    )
    row = tl.arange(0, COLUMNS)
    position = first_position + row // num_heads
    table_row_ptr = block_table_ptr + request.to(tl.int64) * block_table_stride
    score_row_ptr = score_ptr + (first_row + row) * score_stride
    # Blocks that all of the tokens see whole, then those that some of them don't.
    whole_end = tl.maximum(first_block, tl.minimum(end, (first_position + 1) // BLOCK))
    for block in tl.range(first_block, whole_end, num_stages=STAGES):
        slot_ptr = pool_ptr + tl.load(table_row_ptr + block).to(tl.int64) * block_stride
        score = _score_block(slot_ptr, first_query, second_query, table_ptr, TARGET)
        tl.store(score_row_ptr + block, tl.max(score, axis=1) * scaled_factor(TARGET), mask=row < num_rows)
    for block in tl.range(whole_end, end, num_stages=1):
        slot_ptr = pool_ptr + tl.load(table_row_ptr + block).to(tl.int64) * block_stride
        score = _score_block(slot_ptr, first_query, second_query, table_ptr, TARGET)
        key_position = tl.arange(0, BLOCK) + block * BLOCK
        score = tl.where(key_position[None, :] <= position[:, None], score, float("-inf"))
        tl.store(score_row_ptr + block, tl.max(score, axis=1) * scaled_factor(TARGET), mask=row < num_rows)


@triton.jit
def _score_block(slot_ptr, first_query, second_query, table_ptr, TARGET: tl.constexpr):
    """float32 [COLUMNS, keys] dot products with all keys of one block.

    Queries are the left operand here: there are enough of them, and a block's maximum then stays within few threads.
    """
    key = tl.arange(0, BLOCK)
    data = tl.load((slot_ptr + key * 64)[:, None] + tl.arange(0, 64)[None, :])
    scale = tl.load((slot_ptr + SCALES_OFFSET + key * 8)[:, None] + tl.arange(0, 8)[None, :])
    first, second = decode_scaled(data, scale, table_ptr, TARGET)
    score = tl.dot(tl.trans(first_query), tl.trans(first))
    return tl.dot(tl.trans(second_query), tl.trans(second), score)

"""Block scores of the indexer: dot products with every index key of a block, and their maximum (fact M2).

One index-key head serves all index queries. A program takes ``BLOCKS`` cache blocks of one request for each of its
``STEPS`` steps. Keys are the left operand of the matrix product, 128 x BLOCKS of them, so that decoded values stay in
registers; the query rows of the request, and its index heads, are the columns of the right one.

With ``PER_RESULT`` the values are decoded without their scales, and the right operand has a column for each row and
each group of 16 dimensions, which is zero outside of its group::

    column  group x ROWS + row        sum over the group's 16 dimensions, exact values
    score   [key, row] = sum over groups of scale[key, group] x column[key, group, row]

so that a scale is applied once per result and group instead of once per value.

Keys of a tile are dealt to its rows 16 at a time, block by block, so that one warp of four gets whole blocks if BLOCKS
is 4 and takes their maximum by itself::

    tile row  m   ->  block (m / 16) % BLOCKS, key m / (16 x BLOCKS) x 16 + m % 16
"""

import triton
import triton.language as tl

from msa_model.ops.kernels.e4m3 import round_to_e4m3
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
    query_ptr, row_stride, num_rows, dims, ROWS: tl.constexpr, PER_RESULT: tl.constexpr, OPERAND: tl.constexpr
):
    """The right operand [64, columns], rounded to E4M3: query rows at ``dims`` [64], zero where a column has none."""
    COLUMNS: tl.constexpr = ROWS * 8 if PER_RESULT else ROWS
    column = tl.arange(0, COLUMNS)
    row = column % ROWS
    is_wanted = (row < num_rows)[None, :] & (dims >= 0)[:, None]
    if PER_RESULT:
        is_wanted = is_wanted & ((column // ROWS)[None, :] == (dims // 16)[:, None])
    query = tl.load(query_ptr + row[None, :] * row_stride + dims[:, None], mask=is_wanted, other=0.0).to(tl.float32)
    return round_to_e4m3(query).to(OPERAND)


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
    """float32 [keys, ROWS] dot products of a tile's keys and the query rows."""
    if PER_RESULT:
        first, second = decode_unscaled(data, TARGET)
        parts = tl.dot(second, second_query, tl.dot(first, first_query))
        parts = tl.reshape(parts, (data.shape[0], 8, ROWS))
        factor = scale_to_f32(scale) * unscaled_factor(TARGET)
        return tl.sum(parts * factor[:, :, None], axis=1)
    else:
        first, second = decode_scaled(data, scale, table_ptr, TARGET)
        return tl.dot(second, second_query, tl.dot(first, first_query)) * scaled_factor(TARGET)


@triton.jit
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
    query_row_ptr = query_ptr + request.to(tl.int64) * num_rows * row_stride
    first_query = load_query_columns(
        query_row_ptr, row_stride, num_rows, first_dims(column, TARGET), ROWS, PER_RESULT, OPERAND
    )
    second_query = load_query_columns(
        query_row_ptr, row_stride, num_rows, second_dims(column, TARGET), ROWS, PER_RESULT, OPERAND
    )
    tile_row = tl.arange(0, BLOCK * BLOCKS)
    block_of = tile_row // 16 % BLOCKS
    key = tile_row // (16 * BLOCKS) * 16 + tile_row % 16
    row = tl.arange(0, ROWS)
    position = seq_len - (num_rows - row + num_heads - 1) // num_heads
    table_row_ptr = block_table_ptr + request.to(tl.int64) * block_table_stride
    score_row_ptr = score_ptr + (request.to(tl.int64) * num_rows + row) * score_stride
    end = tl.minimum(first_block + BLOCKS * STEPS, num_blocks)
    for start in tl.range(first_block, end, BLOCKS, num_stages=STAGES):
        page = tl.load(table_row_ptr + start).to(tl.int64)
        for number in tl.static_range(1, BLOCKS):
            block = tl.minimum(start + number, num_blocks - 1)
            page = tl.where(block_of == number, tl.load(table_row_ptr + block).to(tl.int64), page)
        slot_ptr = pool_ptr + page * block_stride
        data = tl.load((slot_ptr + key * 64)[:, None] + column[None, :])
        scale = tl.load((slot_ptr + SCALES_OFFSET + key * 8)[:, None] + tl.arange(0, 8)[None, :])
        score = score_tile(data, scale, first_query, second_query, table_ptr, TARGET, ROWS, PER_RESULT)
        key_position = (start + block_of) * BLOCK + key
        score = tl.where(key_position[:, None] <= position[None, :], score, float("-inf"))
        best = tl.max(tl.max(tl.reshape(score, (8, BLOCKS, 16, ROWS)), axis=2), axis=0)
        block = start + tl.arange(0, BLOCKS)
        is_kept = (block < num_blocks)[:, None] & (row < num_rows)[None, :]
        tl.store(score_row_ptr[None, :] + block[:, None], best, mask=is_kept)

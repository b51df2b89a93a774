"""Attention of one query token and KV head over its chosen blocks: what decode and prefill kernels share.

A program's W warps each take their own 128 / W keys of every block and keep their own maximum, sum and output until
the end: the batch dimension of all matrix products is the warp, so that no value passes from warp to warp in the loop.
Nor does one pass from thread to thread. A matrix product is indifferent to the order of the dimension it sums over, so
tiles are loaded as wide as memory likes them, and registers are named as the tensor cores want them (``_key_operand``
and ``_value_operand`` are renamings, without instructions)::

    K   a thread has 16 neighbouring bytes of a token   q is loaded in the order of dimensions that results
    V   a thread has 8 bytes of each of four tokens     tokens are dealt to rows so that those four come together

Tiles are loaded as plain rows all the same: they wait in shared memory in the order of the loaded tile's dimensions,
and with more than two of them reads collided in its banks (measured on H200: twice the time).
"""

import triton
import triton.language as tl

from msa_model.ops.kernels.e4m3 import to_e4m3
from msa_model.ops.kernels.nvfp4_decode import (
    decode_bytes,
    decode_scaled,
    first_dims,
    scaled_factor,
    second_dims,
)

BLOCK = tl.constexpr(128)
HEAD_DIM = tl.constexpr(128)
DATA_BYTES = tl.constexpr(64)
SCALE_BYTES = tl.constexpr(8)
SCALES_OFFSET = tl.constexpr(8192)
SLOT_BYTES = tl.constexpr(9216)
# Rows of the smallest matrix product; fewer query heads leave rows unused.
HEAD_ROWS = tl.constexpr(16)
# Behind any context, and its first token's position still an int32.
NO_BLOCK = tl.constexpr(1 << 23)
# Below any score, and still finite: a warp that has seen no key yet must not compute inf - inf.
NO_SCORE = tl.constexpr(-1e30)


@triton.jit
def load_query(query_ptr, head_stride, num_heads, TARGET: tl.constexpr, WARPS: tl.constexpr):
    """The left operands [W, 16, 64] of the score, rounded to E4M3, from the 128 dimensions of each head."""
    head = tl.arange(0, HEAD_ROWS)
    column = tl.arange(0, DATA_BYTES)
    byte = column // 4 % 4 * 16 + column // 16 * 4 + column % 4
    row = query_ptr + head[:, None] * head_stride
    is_head = (head < num_heads)[:, None]
    first = tl.load(row + first_dims(byte, TARGET)[None, :], mask=is_head, other=0.0)
    second = tl.load(row + second_dims(byte, TARGET)[None, :], mask=is_head, other=0.0)
    return _per_warp(first, TARGET, WARPS), _per_warp(second, TARGET, WARPS)


@triton.jit
def _per_warp(query, TARGET: tl.constexpr, WARPS: tl.constexpr):
    ROUNDS: tl.constexpr = TARGET == "sm_100" or TARGET == "sm_103" or TARGET == "gfx950"
    query = to_e4m3(query.to(tl.float32), TARGET).to(tl.float8e4nv if ROUNDS else tl.float16)
    return tl.broadcast_to(query[None, :, :], (WARPS, HEAD_ROWS, DATA_BYTES))


@triton.jit
def find_blocks(chosen_ptr, table_ptr, position, num_chosen, PICKS: tl.constexpr):
    """A token's chosen blocks int32 [PICKS], their numbers in the pool, and how many of them it sees.

    Chosen blocks rise, so those that begin behind ``position`` come last; all of them do for a negative one. Their
    numbers in the pool are 0, as nothing stale may be followed.
    """
    pick = tl.arange(0, PICKS)
    block = tl.load(chosen_ptr + pick, mask=pick < num_chosen, other=NO_BLOCK).to(tl.int32)
    is_visible = block * BLOCK <= position
    return block, tl.load(table_ptr + block, mask=is_visible, other=0), tl.sum(is_visible.to(tl.int32))


@triton.jit
def attend_blocks(
    first_query,
    second_query,
    pool_ptr,  # uint8, at the head's K slot; its V slot is the next one
    block_stride,  # bytes, int64
    blocks,  # the token's chosen blocks [k], rising
    pages,  # and their numbers in the pool
    begin,
    end,  # of the picks to attend to, all of which begin at or before position
    position,
    products_ptr,
    score_scale,  # of the softmax, times log2(e)
    TARGET: tl.constexpr,
    WARPS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Maximum of the scores [16] in powers of two, sum of weights [16] and weighted sums of values [16, 128]."""
    KEYS: tl.constexpr = BLOCK // WARPS
    warp = tl.arange(0, WARPS)[:, None]
    column = tl.arange(0, KEYS)[None, :]
    key = column // 8 * (8 * WARPS) + warp * 8 + column % 8
    top = tl.full((WARPS, HEAD_ROWS), NO_SCORE, tl.float32)
    total = tl.zeros((WARPS, HEAD_ROWS), tl.float32)
    first_sum = tl.zeros((WARPS, HEAD_ROWS, DATA_BYTES), tl.float32)
    second_sum = tl.zeros((WARPS, HEAD_ROWS, DATA_BYTES), tl.float32)
    score_scale = score_scale * scaled_factor(TARGET)

    value_token = _value_tokens(WARPS)
    picks = tl.arange(0, blocks.shape[0])
    for pick in tl.range(begin, end, num_stages=STAGES):
        limit = position - tl.sum(tl.where(picks == pick, blocks, 0)) * BLOCK
        slot = pool_ptr + tl.sum(tl.where(picks == pick, pages, 0)).to(tl.int64) * block_stride
        key_data, key_scale = _load_tokens(slot, tl.arange(0, BLOCK))
        value_data, value_scale = _load_tokens(slot + SLOT_BYTES, value_token)

        first_key, second_key = decode_scaled(key_data, key_scale, products_ptr, TARGET)
        score = tl.dot(first_query, _key_operand(first_key, WARPS))
        score = tl.dot(second_query, _key_operand(second_key, WARPS), score)
        score = tl.where((key <= limit)[:, None, :], score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 2) * score_scale)
        weight = tl.exp2(score * score_scale - new_top[:, :, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weight, 2)
        top = new_top
        weight = _weight_operand(weight, WARPS)

        # Values of keys behind the query become zero: a weight of zero does not silence stale bytes that mean NaN.
        value_scale = tl.where((value_token <= limit)[:, None], value_scale, 0)
        first_value, second_value = decode_bytes(value_data, value_scale, products_ptr, TARGET)
        first_sum = tl.dot(weight, _value_operand(first_value, WARPS), first_sum * shrink[:, :, None])
        second_sum = tl.dot(weight, _value_operand(second_value, WARPS), second_sum * shrink[:, :, None])

    best = tl.max(top, 0)
    part = tl.exp2(top - best[None, :])
    factor = scaled_factor(TARGET)
    first_sum = _over_warps(first_sum * part[:, :, None], WARPS) * factor
    second_sum = _over_warps(second_sum * part[:, :, None], WARPS) * factor
    return best, tl.sum(total * part, 0), _whole_heads(first_sum, second_sum)


@triton.jit
def store_heads(out_ptr, head_stride, num_heads, total, sums):
    """Divide sums [16, 128] by sums of weights [16] and store a head in each row; one that saw no key gets zeros."""
    head = tl.arange(0, HEAD_ROWS)
    place = head[:, None] * head_stride + tl.arange(0, HEAD_DIM)[None, :]
    result = sums / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), mask=(head < num_heads)[:, None])


@triton.jit
def _over_warps(parts, WARPS: tl.constexpr):
    """Sum over the first dimension of [W, 16, 64]: ``split`` brings the parts to one thread with few wide copies."""
    parts = tl.permute(parts, (1, 2, 0))
    for step in tl.static_range(5):
        if parts.numel > HEAD_ROWS * DATA_BYTES:
            pairs = tl.reshape(parts, (HEAD_ROWS, DATA_BYTES, WARPS >> (step + 1), 2))
            one, other = tl.split(pairs)
            parts = one + other
    return tl.reshape(parts, (HEAD_ROWS, DATA_BYTES))


@triton.jit
def _whole_heads(even, odd):
    """Two tiles [16, 64] of ``_value_operand``'s columns to [16, 128] in the order of head dimensions."""
    even = tl.permute(tl.reshape(even, (HEAD_ROWS, 8, 8)), (0, 2, 1))
    odd = tl.permute(tl.reshape(odd, (HEAD_ROWS, 8, 8)), (0, 2, 1))
    return tl.reshape(tl.join(even, odd), (HEAD_ROWS, HEAD_DIM))


@triton.jit
def _load_tokens(slot, token):
    """data uint8 [128, 64] and scales [128, 8] of a slot, with ``token`` [128] in each row."""
    data = tl.load(slot + token[:, None] * DATA_BYTES + tl.arange(0, DATA_BYTES)[None, :])
    scale = tl.load(slot + SCALES_OFFSET + token[:, None] * SCALE_BYTES + tl.arange(0, SCALE_BYTES)[None, :])
    return data, scale


@triton.jit
def _value_tokens(WARPS: tl.constexpr):
    """Which token of the block lies in each row [128] of the values, for ``_value_operand``."""
    row = tl.arange(0, BLOCK)
    part = row // 4 // WARPS
    return part // 4 * (16 * WARPS) + part // 2 % 2 * (8 * WARPS) + row // 4 % WARPS * 8 + row % 4 * 2 + part % 2


@triton.jit
def _key_operand(tile, WARPS: tl.constexpr):
    """[128, 64] keys as loaded to [W, 64, 128 / W], where threads hold 4 neighbours of the summed dimension."""
    tile = tl.reshape(tile, (BLOCK // (8 * WARPS), WARPS, 8, 4, 4, 4))
    tile = tl.permute(tile, (1, 4, 3, 5, 0, 2))
    return tl.reshape(tile, (WARPS, DATA_BYTES, BLOCK // WARPS))


@triton.jit
def _weight_operand(weight, WARPS: tl.constexpr):
    """Columns of the score in the order of ``_value_operand``'s rows, where the four of a thread are neighbours."""
    weight = tl.reshape(weight.to(tl.float16), (WARPS, HEAD_ROWS, BLOCK // (16 * WARPS), 2, 4, 2))
    return tl.reshape(tl.permute(weight, (0, 1, 2, 4, 3, 5)), (WARPS, HEAD_ROWS, BLOCK // WARPS))


@triton.jit
def _value_operand(tile, WARPS: tl.constexpr):
    """[128, 64] values as loaded to [W, 128 / W, 64] of float16, where threads hold 4 neighbours of the keys."""
    tile = tl.reshape(tile.to(tl.float16), (BLOCK // (16 * WARPS), 4, WARPS, 4, 8, 8))
    tile = tl.permute(tile, (2, 0, 3, 1, 5, 4))
    return tl.reshape(tile, (WARPS, BLOCK // WARPS, DATA_BYTES))

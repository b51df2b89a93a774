"""Exact selection of the best blocks of one query and index head (fact M2); one program each.

A block's score and number make one int64, larger for a better score and, at equal scores, for a lower number, so no
two are equal. Blocks are cut into GROUPS groups of MEMBERS (block i in group i % GROUPS). The groups with the largest
maxima hold all of the best blocks: a block of another group has as many larger blocks as groups were chosen. So two
sorts of a few hundred numbers replace one of thousands.

A key, from the highest bit::

    32 bits   the float's bits, negative ones inverted but for the sign: signed integers in the order of the floats
    32 bits   2^31 - 1 - block
"""

import triton
import triton.language as tl

LOW_BITS = tl.constexpr(0x7FFFFFFF)
MINUS_INFINITY = tl.constexpr(-2139095041)  # of the order above
ABOVE_ALL = tl.constexpr(0x7FFFFFFF)
NO_KEY = tl.constexpr(-(1 << 63))


@triton.jit
def _keys(score_row_ptr, block, newest, num_blocks, local_blocks):
    """int64 keys of ``block`` numbers; NO_KEY for those that do not exist."""
    is_seen = (block <= newest) & (block < num_blocks)
    score = tl.load(score_row_ptr + block, mask=is_seen, other=float("-inf"))
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # adding zero makes -0.0 equal to 0.0
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    order = tl.where(is_seen & (block > newest - local_blocks), ABOVE_ALL, order)
    key = (order.to(tl.int64) << 32) | (block ^ LOW_BITS).to(tl.int64)
    return tl.where(block < num_blocks, key, NO_KEY)


@triton.jit
def _block_of(key):
    return (key & LOW_BITS).to(tl.int32) ^ LOW_BITS


@triton.jit
def _best_of_groups(score_row_ptr, newest, num_blocks, local_blocks, MEMBERS: tl.constexpr, GROUPS: tl.constexpr):
    """int64 [GROUPS], the largest key of each group."""
    member = tl.arange(0, MEMBERS)
    block = member[:, None] * GROUPS + tl.arange(0, GROUPS)[None, :]
    return tl.max(_keys(score_row_ptr, block, newest, num_blocks, local_blocks), axis=0)


@triton.jit
def select_kernel(
    score_ptr,  # float32 [T, G, M]
    place_ptr,  # int32: seq_lens [R] if QUERY_ROWS, else positions [T]
    out_ptr,  # int32 [T, G, k]
    token_stride,
    head_stride,
    num_heads,
    num_blocks,
    topk,
    local_blocks,
    QUERY_ROWS: tl.constexpr,
    TOPK: tl.constexpr,
    MEMBERS: tl.constexpr,
    GROUPS: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Chosen block numbers in rising order; newest blocks first of all, then by score."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    if QUERY_ROWS > 0:
        position = tl.load(place_ptr + token // QUERY_ROWS) - QUERY_ROWS + token % QUERY_ROWS
    else:
        position = tl.load(place_ptr + token)
    if WAITS:
        tl.extra.cuda.gdc_wait()
    newest = tl.where(position < 0, -1, position // 128)
    score_row_ptr = score_ptr + token.to(tl.int64) * token_stride + head * head_stride
    if MEMBERS > 1:
        maxima = _best_of_groups(score_row_ptr, newest, num_blocks, local_blocks, MEMBERS, GROUPS)
        group = _block_of(tl.topk(maxima, TOPK)) % GROUPS
        block = tl.arange(0, MEMBERS)[None, :] * GROUPS + group[:, None]
        key = tl.reshape(_keys(score_row_ptr, block, newest, num_blocks, local_blocks), (TOPK * MEMBERS,))
    else:
        key = _keys(score_row_ptr, tl.arange(0, GROUPS), newest, num_blocks, local_blocks)
    best = tl.topk(key, TOPK)
    place = tl.arange(0, TOPK)
    chosen = tl.where(place < topk, _block_of(best), LOW_BITS)
    rank = tl.sum((chosen[None, :] < chosen[:, None]).to(tl.int32), axis=1)
    tl.store(out_ptr + (token.to(tl.int64) * num_heads + head) * topk + rank, chosen, mask=place < topk)

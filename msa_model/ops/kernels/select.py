"""Exact selection of the best blocks of one query and index head (fact M2); one program each.

A block's score and number make one int64 key, larger for a better score and, at equal scores, for a lower number, so no
two are equal. From the highest bit::

    32 bits   the float's bits, negative ones inverted but for the sign: signed integers in the order of the floats
    32 bits   2^31 - 1 - number

Blocks are cut into GROUPS groups of MEMBERS neighbours. The groups with the best maxima, ties to the lower group, hold
all of the best blocks: a block outside of them loses to the maximum of each group that was chosen. So two sorts of a
few hundred keys replace one of thousands.
"""

import triton
import triton.language as tl

LOW_BITS = tl.constexpr(0x7FFFFFFF)
NO_KEY = tl.constexpr(-(1 << 63))


@triton.jit
def _scores(score_row_ptr, block, newest, num_blocks, local_blocks):
    """float32 scores of ``block`` numbers: -inf behind the newest, +inf for those that are always kept."""
    is_seen = (block <= newest) & (block < num_blocks)
    score = tl.load(score_row_ptr + block, mask=is_seen, other=float("-inf"))
    return tl.where(is_seen & (block > newest - local_blocks), float("inf"), score)


@triton.jit
def _keys(score, number):
    """int64 keys of float32 scores."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # adding zero makes -0.0 equal to 0.0
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (order.to(tl.int64) << 32) | (number ^ LOW_BITS).to(tl.int64)


@triton.jit
def _number_of(key):
    return (key & LOW_BITS).to(tl.int32) ^ LOW_BITS


# Strides stay specialised: rows that begin at 16 bytes are loaded in words of 16 bytes, which takes 5 us off.
@triton.jit(do_not_specialize=["num_heads", "num_blocks", "topk", "local_blocks", "query_rows"])
def select_kernel(
    score_ptr,  # float32 [T, G, M]
    place_ptr,  # int32: seq_lens [R] if query_rows, else positions [T]
    out_ptr,  # int32 [T, G, k]
    token_stride,
    head_stride,
    num_heads,
    num_blocks,
    topk,
    local_blocks,
    query_rows,  # of a request, or 0
    TOPK: tl.constexpr,
    MEMBERS: tl.constexpr,
    GROUPS: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Chosen block numbers in rising order; newest blocks first of all, then by score."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    if query_rows > 0:
        position = tl.load(place_ptr + token // query_rows) - query_rows + token % query_rows
    else:
        position = tl.load(place_ptr + token)
    newest = tl.where(position < 0, -1, position // 128)
    score_row_ptr = score_ptr + token.to(tl.int64) * token_stride + head * head_stride
    if WAITS:
        tl.extra.cuda.gdc_wait()
    group = tl.arange(0, GROUPS)
    if MEMBERS > 1:
        member = tl.arange(0, MEMBERS)
        block = group[:, None] * MEMBERS + member[None, :]
        maxima = tl.max(_scores(score_row_ptr, block, newest, num_blocks, local_blocks), axis=1)
        best_groups = _number_of(tl.topk(_keys(maxima, group), TOPK))
        block = tl.reshape(best_groups[:, None] * MEMBERS + member[None, :], (TOPK * MEMBERS,))
    else:
        block = group
    key = _keys(_scores(score_row_ptr, block, newest, num_blocks, local_blocks), block)
    best = tl.topk(tl.where(block < num_blocks, key, NO_KEY), TOPK)
    place = tl.arange(0, TOPK)
    chosen = tl.where(place < topk, _number_of(best), LOW_BITS)
    rank = tl.sum((chosen[None, :] < chosen[:, None]).to(tl.int32), axis=1)
    tl.store(out_ptr + (token.to(tl.int64) * num_heads + head) * topk + rank, chosen, mask=place < topk)

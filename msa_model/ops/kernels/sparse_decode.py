"""Sparse attention of decode rows: one program for a token, a KV head and a share of its chosen blocks.

Where a token's blocks are shared out to several programs, each leaves its part in a workspace, and a second kernel adds
them up. On NVIDIA that one is started early and waits by itself.
"""

import triton
import triton.language as tl

from msa_model.ops.kernels.block_attention import (
    HEAD_DIM,
    HEAD_ROWS,
    attend_blocks,
    find_blocks,
    load_query,
    store_heads,
)


@triton.jit
def sparse_decode_kernel(
    query_ptr,  # [T, H, 128]
    pool_ptr,  # uint8, at the first head's K slot of the layer
    chosen_ptr,  # int [T, G, k], rising
    seq_lens_ptr,  # int32 [R]
    table_ptr,  # int32 [R, M]
    products_ptr,
    out_ptr,  # [T, H, 128]
    sums_ptr,  # float32 [T, G, splits, 16, 128]
    tops_ptr,  # float32 [T, G, splits, 2, 16]: maximum, sum of weights
    query_token_stride,
    query_head_stride,
    out_token_stride,
    out_head_stride,
    block_stride,
    table_stride,
    head_bytes,  # from one KV head's K slot to the next one's
    rows,  # per request
    num_heads,  # per KV head
    num_chosen,
    score_scale,
    PICKS: tl.constexpr,  # num_chosen, or the power of two behind it
    SPLITS: tl.constexpr,
    TARGET: tl.constexpr,
    WARPS: tl.constexpr,
    STAGES: tl.constexpr,
    WAITS: tl.constexpr,  # for the kernel before, which has let this one start early
    LETS_START: tl.constexpr,
):
    if LETS_START:
        tl.extra.cuda.gdc_launch_dependents()
    split = tl.program_id(0) % SPLITS
    token = tl.program_id(0) // SPLITS
    group = tl.program_id(1)
    pair = token * tl.num_programs(1) + group
    request = token // rows
    position = tl.load(seq_lens_ptr + request) - rows + token % rows
    if WAITS:
        tl.extra.cuda.gdc_wait()
    table_ptr += request.to(tl.int64) * table_stride
    blocks, pages, num_visible = find_blocks(chosen_ptr + pair * num_chosen, table_ptr, position, num_chosen, PICKS)
    begin = num_visible * split // SPLITS
    end = num_visible * (split + 1) // SPLITS

    query_ptr += token.to(tl.int64) * query_token_stride + group * num_heads * query_head_stride
    first_query, second_query = load_query(query_ptr, query_head_stride, num_heads, TARGET, WARPS)
    top, total, sums = attend_blocks(
        first_query,
        second_query,
        pool_ptr + group * head_bytes,
        block_stride,
        blocks,
        pages,
        begin,
        end,
        position,
        products_ptr,
        score_scale,
        TARGET,
        WARPS,
        STAGES,
    )
    if SPLITS == 1:
        out_ptr += token.to(tl.int64) * out_token_stride + group * num_heads * out_head_stride
        store_heads(out_ptr, out_head_stride, num_heads, total, sums)
    else:
        head = tl.arange(0, HEAD_ROWS)
        part = pair * SPLITS + split
        tl.store(tops_ptr + part * (2 * HEAD_ROWS) + head, top)
        tl.store(tops_ptr + part * (2 * HEAD_ROWS) + HEAD_ROWS + head, total)
        place = head[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
        tl.store(sums_ptr + part.to(tl.int64) * (HEAD_ROWS * HEAD_DIM) + place, sums)


@triton.jit
def merge_decode_kernel(
    sums_ptr,
    tops_ptr,
    out_ptr,
    out_token_stride,
    out_head_stride,
    num_groups,
    SPLITS: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Add up the parts of one token, KV head and query head."""
    pair = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.arange(0, SPLITS)
    dim = tl.arange(0, HEAD_DIM)
    tops_ptr += (pair * SPLITS + split) * (2 * HEAD_ROWS) + head
    sums_ptr += pair.to(tl.int64) * (SPLITS * HEAD_ROWS * HEAD_DIM) + head * HEAD_DIM
    if WAITS:
        tl.extra.cuda.gdc_wait()
    top = tl.load(tops_ptr)
    totals = tl.load(tops_ptr + HEAD_ROWS)
    sums = tl.load(sums_ptr + split[:, None] * (HEAD_ROWS * HEAD_DIM) + dim[None, :])
    weight = tl.exp2(top - tl.max(top, 0))
    total = tl.sum(totals * weight, 0)
    result = tl.sum(sums * weight[:, None], 0) / tl.where(total > 0.0, total, 1.0)
    out_ptr += (pair // num_groups).to(tl.int64) * out_token_stride
    out_ptr += (pair % num_groups * tl.num_programs(1) + head) * out_head_stride
    tl.store(out_ptr + dim, result.to(out_ptr.dtype.element_ty))

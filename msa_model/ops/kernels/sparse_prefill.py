"""Sparse attention of prefill: one program for a query token and a KV head, as each token has blocks of its own."""

import triton
import triton.language as tl

from msa_model.ops.kernels.block_attention import attend_blocks, find_blocks, load_query, store_heads


@triton.jit
def sparse_prefill_kernel(
    query_ptr,  # [T, H, 128]
    pool_ptr,  # uint8, at the first head's K slot of the layer
    chosen_ptr,  # int [T, G, k], rising
    starts_ptr,  # int32 [R + 1]
    seq_lens_ptr,  # int32 [R]
    table_ptr,  # int32 [R, M]
    products_ptr,
    out_ptr,  # [T, H, 128]
    query_token_stride,
    query_head_stride,
    out_token_stride,
    out_head_stride,
    block_stride,
    table_stride,
    head_bytes,  # from one KV head's K slot to the next one's
    num_heads,  # per KV head
    num_chosen,
    score_scale,
    PICKS: tl.constexpr,  # num_chosen, or the power of two behind it
    TARGET: tl.constexpr,
    WARPS: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.program_id(0)
    request = tl.program_id(1)
    group = tl.program_id(2)
    start = tl.load(starts_ptr + request)
    num_rows = tl.load(starts_ptr + request + 1) - start
    if row >= num_rows:
        return
    token = (start + row).to(tl.int64)
    position = tl.load(seq_lens_ptr + request) - num_rows + row
    table_ptr += request.to(tl.int64) * table_stride
    chosen_ptr += (token * tl.num_programs(2) + group) * num_chosen
    blocks, pages, num_visible = find_blocks(chosen_ptr, table_ptr, position, num_chosen, PICKS)
    query_ptr += token * query_token_stride + group * num_heads * query_head_stride
    first_query, second_query = load_query(query_ptr, query_head_stride, num_heads, TARGET, WARPS)
    _, total, sums = attend_blocks(
        first_query,
        second_query,
        pool_ptr + group * head_bytes,
        block_stride,
        blocks,
        pages,
        0,
        num_visible,
        position,
        products_ptr,
        score_scale,
        TARGET,
        WARPS,
        STAGES,
    )
    out_ptr += token * out_token_stride + group * num_heads * out_head_stride
    store_heads(out_ptr, out_head_stride, num_heads, total, sums)

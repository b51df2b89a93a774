"""Sparse attention of prefill over the paged NVFP4 cache (fact M2): checks and launch.

Rounds as ``msa_model.ops.sparse_decode`` does. The twin is ``msa_model.reference.block_attention.attend_prefill``.
"""

import torch
import triton

from msa_model.ops.kernels.sparse_prefill import sparse_prefill_kernel
from msa_model.ops.nvfp4 import e4m3_products
from msa_model.ops.pool import check_block_table, check_pool
from msa_model.ops.sparse_decode import LOG2_E, NUM_STAGES, NUM_WARPS, check_heads
from msa_model.ops.target import target_of
from msa_model.pages import SLOT_BYTES
from msa_model.reference.block_attention import SCALE


def sparse_attention_prefill(
    query: torch.Tensor,
    pool: torch.Tensor,
    key_slot: int,
    head_slots: int,
    chosen: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    max_query_len: int,
    out: torch.Tensor,
) -> None:
    """Attend each query token to its ``chosen`` blocks, for requests of unequal length, and write ``out``.

    ``query_start_loc`` int32 [R + 1]: request r has tokens [r] to [r + 1], the last of its context (the first ones are
    in the cache from an earlier chunk or a shared prefix); ``max_query_len`` bounds their number. Tokens of ``out``
    outside of all requests are left as they were. The rest, and ValueError, as in ``sparse_attention_decode``.
    """
    requests, _ = check_block_table(block_table, seq_lens)
    groups, group_size = check_heads(query, out, chosen)
    check_pool(pool, key_slot)
    check_pool(pool, key_slot + (groups - 1) * head_slots + 1)
    if query_start_loc.shape != (requests + 1,) or query_start_loc.dtype != torch.int32:
        raise ValueError(f"query_start_loc must be int32 [{requests + 1}], not {tuple(query_start_loc.shape)}")
    if max_query_len < 1:
        raise ValueError(f"max_query_len must be at least 1, not {max_query_len}")
    target = target_of(pool.device)
    sparse_prefill_kernel[(max_query_len, requests, groups)](
        query,
        pool[:, key_slot],
        chosen,
        query_start_loc,
        seq_lens,
        block_table,
        e4m3_products(pool.device),
        out,
        query.stride(0),
        query.stride(1),
        out.stride(0),
        out.stride(1),
        pool.stride(0),
        block_table.stride(0),
        head_slots * SLOT_BYTES,
        group_size,
        chosen.shape[2],
        SCALE * LOG2_E,
        PICKS=triton.next_power_of_2(chosen.shape[2]),
        TARGET=target.name,
        WARPS=NUM_WARPS,
        STAGES=NUM_STAGES,
        num_warps=NUM_WARPS,
    )

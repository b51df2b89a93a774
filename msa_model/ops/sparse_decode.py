"""Sparse attention of decode rows over the paged NVFP4 cache (fact M2): checks, sharing out of work, launch.

Queries are rounded to E4M3 with saturation, once (fact M4); keys and values are exact products of value and scale, or
rounded to E4M3 where the target's decoding does that (fact D2). The twin is ``msa_model.reference.block_attention``.
"""

import math

import torch
import triton

from msa_model.ops.kernels.sparse_decode import merge_decode_kernel, sparse_decode_kernel
from msa_model.ops.nvfp4 import e4m3_products
from msa_model.ops.pool import check_block_table, check_pool
from msa_model.ops.target import Target, target_of
from msa_model.pages import SLOT_BYTES
from msa_model.reference.block_attention import SCALE

HEAD_DIM = 128
# Query heads per KV head that a program has rows for.
MAX_GROUP_SIZE = 16
MAX_QUERY_ROWS = 8
MAX_CHOSEN = 64
# Two programs of four warps fit a multiprocessor's registers; more warps repeat more of the work on queries. Of three
# steps of the loop that are under way at once, one computes and two copy.
NUM_WARPS = 4
NUM_STAGES = 3
LOG2_E = math.log2(math.e)


def decode_splits(target: Target, num_pairs: int, topk_blocks: int) -> int:
    """Programs, a power of two, among which each of ``num_pairs`` of tokens and KV heads shares out its blocks.

    About one program for each multiprocessor: a second one hides latency, but costs a prologue and a part to be merged.
    Measured on H200, us at 16 blocks for 1, 2, 4, 8 and 16 splits: 64 pairs 20.8, 13.7, 14.2, 18.1, 26.1; 256 pairs
    35.0, 41.3, 48.1.
    """
    splits = 1
    while splits < topk_blocks and num_pairs * splits * 2 <= target.num_sms:
        splits *= 2
    return splits


def sparse_attention_decode(
    query: torch.Tensor,
    pool: torch.Tensor,
    key_slot: int,
    head_slots: int,
    chosen: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    follows_selection: bool = False,
    splits: int | None = None,
    out: torch.Tensor,
) -> None:
    """Attend each query token to its ``chosen`` blocks up to its own key, and write ``out``.

    ``query`` and ``out`` [T, H, 128] of float32, bfloat16 or float16, each head contiguous; T = R x Q tokens,
    request-major, Q from 1 to 8; H = G x N heads, N up to 16 per KV head.
    ``pool`` uint8 [num_blocks, num_slots, 128, 72]; keys of KV head g are in slot ``key_slot + g * head_slots`` and its
    values in the next one. ``chosen`` int32 or int64 [T, G, k], contiguous, k up to 64: block numbers of the request
    in rising order; those behind the context (surplus picks) are not read.
    ``block_table`` int32 [R, M], stale behind a request's blocks; ``seq_lens`` int32 [R], the step's tokens included,
    0 for padding. Row j of a request is at position seq_len - Q + j. Tokens without any key get zeros.
    ``follows_selection``: the kernel launched just before, on the same stream, is the source of ``chosen``; this one
    is launched before its end and waits for it (NVIDIA from Hopper on). ``splits``: instead of ``decode_splits``.
    Raises ValueError for other shapes or types.
    """
    requests, _ = check_block_table(block_table, seq_lens)
    groups, group_size = check_heads(query, out, chosen)
    check_pool(pool, key_slot)
    check_pool(pool, key_slot + (groups - 1) * head_slots + 1)
    tokens = query.shape[0]
    if not requests or tokens % requests or not 1 <= tokens // requests <= MAX_QUERY_ROWS:
        raise ValueError(f"{requests} requests can't have {tokens} query rows: 1 to {MAX_QUERY_ROWS} each, all alike")
    target = target_of(pool.device)
    splits = splits or decode_splits(target, tokens * groups, chosen.shape[2])
    waits = follows_selection and target.has_early_start
    lets_start = splits > 1 and target.has_early_start
    parts = tokens * groups * splits if splits > 1 else 0
    sums = torch.empty(parts, MAX_GROUP_SIZE, HEAD_DIM, device=pool.device)
    tops = torch.empty(parts, 2, MAX_GROUP_SIZE, device=pool.device)
    sparse_decode_kernel[(tokens * splits, groups)](
        query,
        pool[:, key_slot],
        chosen,
        seq_lens,
        block_table,
        e4m3_products(pool.device),
        out,
        sums,
        tops,
        query.stride(0),
        query.stride(1),
        out.stride(0),
        out.stride(1),
        pool.stride(0),
        block_table.stride(0),
        head_slots * SLOT_BYTES,
        tokens // requests,
        group_size,
        chosen.shape[2],
        SCALE * LOG2_E,
        PICKS=triton.next_power_of_2(chosen.shape[2]),
        SPLITS=splits,
        TARGET=target.name,
        WARPS=NUM_WARPS,
        STAGES=NUM_STAGES,
        WAITS=waits,
        LETS_START=lets_start,
        num_warps=NUM_WARPS,
        **({"launch_pdl": True} if waits else {}),
    )
    if splits > 1:
        merge_decode_kernel[(tokens * groups, group_size)](
            sums,
            tops,
            out,
            out.stride(0),
            out.stride(1),
            groups,
            SPLITS=splits,
            WAITS=lets_start,
            num_warps=1,
            **({"launch_pdl": True} if lets_start else {}),
        )


def check_heads(query: torch.Tensor, out: torch.Tensor, chosen: torch.Tensor) -> tuple[int, int]:
    """(KV heads, query heads for each) of ``query`` and ``out`` [T, H, 128] and ``chosen`` [T, G, k], or ValueError."""
    tokens, heads, dim = query.shape
    if dim != HEAD_DIM or out.shape != query.shape or query.stride(2) != 1 or out.stride(2) != 1:
        raise ValueError(f"query and out must be alike [T, H, {HEAD_DIM}], not {query.shape} and {tuple(out.shape)}")
    if not (query.is_floating_point() and out.is_floating_point()):
        raise ValueError(f"query and out must be of a float type, not {query.dtype} and {out.dtype}")
    if chosen.dim() != 3 or chosen.shape[0] != tokens or not chosen.is_contiguous():
        raise ValueError(f"chosen blocks must be contiguous [{tokens}, G, k], not {tuple(chosen.shape)}")
    groups, num_chosen = chosen.shape[1:]
    if chosen.dtype not in (torch.int32, torch.int64) or not 1 <= num_chosen <= MAX_CHOSEN:
        raise ValueError(f"1 to {MAX_CHOSEN} chosen blocks, int32 or int64, not {num_chosen} of {chosen.dtype}")
    if heads % groups or heads // groups > MAX_GROUP_SIZE:
        raise ValueError(f"{groups} KV heads can't have {heads} query heads: up to {MAX_GROUP_SIZE} each, all alike")
    return groups, heads // groups

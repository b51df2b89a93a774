"""Exact top-k over block scores: the newest blocks, then the best, ties to the lower block (fact M2).

The twin is ``msa_model.reference.selection.select_blocks``. Launches are static, so they can be captured in a graph.
"""

import torch
import triton

from msa_model.ops.kernels.select import select_kernel
from msa_model.ops.target import target_of

# On H200, 1 to 64 rows of 4,096 blocks took 4.9-5.0 us so, against 5.5 us with 256 groups and 4 warps; 512 rows fill
# the device, and are best with a warp each (10.1 us).
GROUPS = 512
NUM_WARPS, NUM_WARPS_OF_MANY, MANY_ROWS = 8, 1, 256
MAX_BLOCKS = 1 << 14
"""Two million tokens."""


def select_decode(
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    topk_blocks: int,
    local_blocks: int,
    follows_score: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Choose blocks for the query rows of a decode step.

    ``scores`` float32 [T, G, M], last dimension contiguous; entries behind a query's own block are not read.
    ``seq_lens`` int32 [R], R a divisor of T: row j of a request's T / R is at position seq_len - T / R + j.
    Returns int32 [T, G, k], distinct block numbers in rising order, k = min(topk_blocks, M); where the context has
    fewer blocks the surplus picks lie behind it. A row before the context's begin (a padded request) gets 0 to k - 1.
    ``follows_score``: the kernel launched just before, on the same stream, is this op's source and lets its successor
    start early (NVIDIA from Hopper on). Raises ValueError for other shapes or types.
    """
    if not seq_lens.shape[0] or scores.shape[0] % seq_lens.shape[0]:
        raise ValueError(f"{scores.shape[0]} query rows can't be shared evenly by {seq_lens.shape[0]} requests")
    query_rows = scores.shape[0] // seq_lens.shape[0]
    return _select(scores, seq_lens, query_rows, topk_blocks, local_blocks, follows_score, out)


def select_prefill(
    scores: torch.Tensor,
    positions: torch.Tensor,
    *,
    topk_blocks: int,
    local_blocks: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Choose blocks for queries at ``positions`` int32 [T]; the rest as in ``select_decode``."""
    if positions.shape != scores.shape[:1]:
        raise ValueError(f"{scores.shape[0]} queries need as many positions, not {tuple(positions.shape)}")
    return _select(scores, positions, 0, topk_blocks, local_blocks, False, out)


def _select(
    scores: torch.Tensor,
    places: torch.Tensor,
    query_rows: int,
    topk_blocks: int,
    local_blocks: int,
    follows_score: bool,
    out: torch.Tensor | None,
) -> torch.Tensor:
    tokens, heads, num_blocks = scores.shape
    if scores.dtype != torch.float32 or scores.stride(2) != 1:
        raise ValueError(f"scores must be float32 with contiguous blocks, not {scores.dtype}, {scores.stride()}")
    if places.dtype != torch.int32 or not places.is_contiguous():
        raise ValueError(f"lengths and positions must be contiguous int32, not {places.dtype}")
    if not 1 <= local_blocks <= topk_blocks or not 1 <= num_blocks <= MAX_BLOCKS:
        raise ValueError(f"can't select {local_blocks} newest of {topk_blocks} from {num_blocks} blocks")
    topk = min(topk_blocks, num_blocks)
    if out is None:
        out = torch.empty(tokens, heads, topk, dtype=torch.int32, device=scores.device)
    if out.shape != (tokens, heads, topk) or out.dtype != torch.int32 or not out.is_contiguous():
        raise ValueError(f"the output must be contiguous int32 [{tokens}, {heads}, {topk}], not {tuple(out.shape)}")
    padded_topk = triton.next_power_of_2(topk)
    width = max(triton.next_power_of_2(num_blocks), padded_topk)
    groups = min(width, max(GROUPS, padded_topk))
    target = target_of(scores.device)
    waits = follows_score and target.has_early_start
    options = {"launch_pdl": True} if waits else {}
    select_kernel[(tokens, heads)](
        scores,
        places,
        out,
        scores.stride(0),
        scores.stride(1),
        heads,
        num_blocks,
        topk,
        local_blocks,
        query_rows,
        TOPK=padded_topk,
        MEMBERS=width // groups,
        GROUPS=groups,
        WAITS=waits,
        num_warps=NUM_WARPS_OF_MANY if tokens * heads >= MANY_ROWS else NUM_WARPS,
        **options,
    )
    return out

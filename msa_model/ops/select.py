"""Exact top-k over block scores: the newest blocks, then the best, ties to the lower block (fact M2).

The twin is ``msa_model.reference.selection.select_blocks``. Launches are static, so they can be captured in a graph.
"""

import torch
import triton

from msa_model.ops.kernels.select import select_kernel
from msa_model.ops.target import target_of

# On H200, 1 to 64 rows of 4,096 blocks took 4.9-5.0 us with 512 groups and 8 warps, against 5.5 us with 256 and 4; rows
# of 1,024 blocks 3.3 us with 128 and 4, against 3.6 us with 512 and 8. Enough rows to fill the device (512) are best
# with a warp each (10.1 us).
MIN_GROUPS, MAX_GROUPS, MEMBERS = 128, 512, 8
MANY_ROWS = 256
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
    groups = num_groups(width, padded_topk)
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
        num_warps=num_warps(groups, tokens * heads),
        **options,
    )
    return out


def num_groups(width: int, padded_topk: int) -> int:
    """Groups that ``width`` blocks, a power of two, are cut into; all alone where one sort of them is as fast."""
    if width <= MAX_GROUPS:
        return width
    return max(padded_topk, MIN_GROUPS, min(MAX_GROUPS, width // MEMBERS))


def num_warps(groups: int, rows: int) -> int:
    """Warps of a program that selects one of ``rows``."""
    if rows >= MANY_ROWS:
        return 1
    return 8 if groups == MAX_GROUPS else 4

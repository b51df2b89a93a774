"""Block selection (fact M2): score per block, and an exact top-k with ties to the lower block.

Shape letters: T query tokens, G index queries (one per KV head), S keys, B blocks, k chosen blocks.
All shapes are static and nothing waits for the device, so every function can be captured in a CUDA graph.
"""

import torch


def block_scores(score_TGS: torch.Tensor, position_T: torch.Tensor, block_size: int) -> torch.Tensor:
    """Largest score of each block, float32 [T, G, B]; -inf where a block has no key at or before the query.

    ``score_TGS``: S a multiple of ``block_size``, key s at position s. Scores of later keys may be anything, NaN too.
    """
    key_S = torch.arange(score_TGS.shape[-1], device=score_TGS.device)
    is_later_TS = key_S > position_T[:, None]
    return score_TGS.masked_fill(is_later_TS[:, None], float("-inf")).unflatten(-1, (-1, block_size)).amax(-1)


def top_indices(score: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the ``count`` largest of the last dimension, best first; equal scores go to the lower index.

    torch.topk leaves the order of equal scores open and CPU and CUDA differ; a stable sort does not.
    """
    # Adding zero turns -0.0 into 0.0, which a radix sort could tell apart.
    return (score + 0.0).sort(dim=-1, descending=True, stable=True).indices[..., :count]


def select_blocks(score_TGB: torch.Tensor, newest_T: torch.Tensor, topk_blocks: int, local_blocks: int) -> torch.Tensor:
    """Choose the blocks of each query: the newest ``local_blocks``, then the best scores.

    ``newest_T``: the block of the query token itself. Returns distinct block numbers int64 [T, G, k] in rising order,
    k = min(topk_blocks, B). Where the context has fewer blocks, the surplus picks lie behind it: every key of theirs
    is later than the query, so a causal mask drops them.
    """
    block_B = torch.arange(score_TGB.shape[-1], device=score_TGB.device)
    age_TB = newest_T[:, None] - block_B
    is_kept_TB = (age_TB >= 0) & (age_TB < local_blocks)
    score_TGB = score_TGB.masked_fill(is_kept_TB[:, None], float("inf"))
    return top_indices(score_TGB, min(topk_blocks, score_TGB.shape[-1])).sort(dim=-1).values

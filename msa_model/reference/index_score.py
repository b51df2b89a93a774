"""Block scores of the indexer in plain torch: the twin of ``msa_model.ops.index_score``.

It rounds what the kernels round, so that what is left is the order of sums: the index query to E4M3 once (facts M4 and
D2), and, for targets whose decoding does it, the products of value and scale.
"""

import itertools

import torch

from msa_model.config import BLOCK_SIZE
from msa_model.pages import SlotPages
from msa_model.reference.nvfp4 import round_to_e4m3

# Blocks that are decoded at once: 64 MB of float32.
PIECE_BLOCKS = 1024


def score_decode(
    index_query: torch.Tensor,
    pool: torch.Tensor,
    slot: int,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    rounds_products: bool = False,
) -> torch.Tensor:
    """float32 [T, G, M] largest dot product of each block; -inf where a query sees no key. Shapes as the op's."""
    query_rows = index_query.shape[0] // seq_lens.shape[0]
    starts = torch.arange(seq_lens.shape[0] + 1, dtype=torch.int32) * query_rows
    return score_prefill(index_query, pool, slot, block_table, seq_lens, starts, rounds_products=rounds_products)


def score_prefill(
    index_query: torch.Tensor,
    pool: torch.Tensor,
    slot: int,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    rounds_products: bool = False,
) -> torch.Tensor:
    """The same for requests of unequal length; request r has queries ``query_start_loc`` [r] to [r + 1]."""
    query_TGD = round_to_e4m3(index_query)
    score_TGM = query_TGD.new_full((*query_TGD.shape[:2], block_table.shape[1]), float("-inf"))
    pages = SlotPages(pool)
    rows = zip(itertools.pairwise(query_start_loc.tolist()), seq_lens.tolist(), block_table, strict=True)
    for (start, end), seq_len, table_M in rows:
        position_T = torch.arange(seq_len - (end - start), seq_len, device=pool.device)
        for first in range(0, -(-seq_len // BLOCK_SIZE), PIECE_BLOCKS):
            last = min(first + PIECE_BLOCKS, -(-seq_len // BLOCK_SIZE))
            key_BSD = pages.gather(table_M[first:last].long(), torch.full_like(table_M[first:last], slot).long())
            if rounds_products:
                key_BSD = round_to_e4m3(key_BSD)
            score_TGM[start:end, :, first:last] = _scores(query_TGD[start:end], key_BSD, position_T, first)
    return score_TGM


def _scores(query_TGD: torch.Tensor, key_SD: torch.Tensor, position_T: torch.Tensor, first: int) -> torch.Tensor:
    key_SD = key_SD.flatten(0, -2)
    score_TGS = query_TGD @ key_SD.T
    place_S = torch.arange(key_SD.shape[0], device=key_SD.device) + first * BLOCK_SIZE
    score_TGS.masked_fill_((place_S > position_T[:, None])[:, None], float("-inf"))
    return score_TGS.unflatten(-1, (-1, BLOCK_SIZE)).amax(-1)

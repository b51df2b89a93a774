"""Exact attention of each query over its own chosen blocks, in plain torch: what the sparse attention is made of.

Two forms of the same: ``attend_pages`` gathers the chosen pages of each query, with static shapes and no wait for the
device; ``attend_blocks`` takes a request's whole context and goes block by block. ``attend_decode`` and
``attend_prefill`` are the twins of the kernels of the same names in ``msa_model/ops``: they take what those take and
round what those round.

Shape letters: T query tokens, H query heads, G KV heads, N query heads per KV head, D = 128, M blocks of a block
table, k chosen blocks, S = 128 keys of a block (k x 128 where blocks are joined).
"""

import torch

from msa_model.config import BLOCK_SIZE, HEAD_DIM
from msa_model.pages import SlotPages
from msa_model.reference.nvfp4 import round_to_e4m3

SCALE = HEAD_DIM**-0.5
# Elements of one temporary tensor of a twin (64 MB of float32): queries are cut into pieces that stay below it.
_MAX_TEMPORARY_ELEMENTS = 1 << 24


def is_seen(block_TGk: torch.Tensor, position_T: torch.Tensor) -> torch.Tensor:
    """bool [T, G, k, 128]: whether a key of a chosen block is at or before the query."""
    offset = torch.arange(BLOCK_SIZE, device=block_TGk.device)
    return block_TGk[..., None] * BLOCK_SIZE + offset <= position_T[:, None, None, None]


def attend_pages(
    query_TGND: torch.Tensor,
    kv: SlotPages,
    key_slots: torch.Tensor,
    value_slots: torch.Tensor,
    table_TM: torch.Tensor,
    block_TGk: torch.Tensor,
    position_T: torch.Tensor,
    *,
    rounds_products: bool = False,
) -> torch.Tensor:
    """Causal attention over chosen blocks, float32 [T, H, D], keys and values read from their pages.

    ``query_TGND`` float32. ``key_slots`` and ``value_slots`` int64 [G]. ``table_TM`` int64, each token's row of the
    block table. ``block_TGk`` int64, distinct; blocks behind the query are masked, but must be in the table.
    ``rounds_products`` rounds value x scale to E4M3, as some targets' decoding does (fact D2). A query that sees no
    key gets NaN.
    """
    block_id_TGk = table_TM[:, None].expand(-1, block_TGk.shape[1], -1).gather(-1, block_TGk)
    is_seen_TGS = is_seen(block_TGk, position_T).flatten(-2)
    key_TGSD = kv.gather(block_id_TGk, key_slots[:, None])
    # A masked weight is 0, and 0 times a stale NaN would still be NaN.
    value_TGSD = kv.gather(block_id_TGk, value_slots[:, None]).masked_fill(~is_seen_TGS[..., None], 0.0)
    if rounds_products:
        key_TGSD, value_TGSD = round_to_e4m3(key_TGSD), round_to_e4m3(value_TGSD)
    logit_TGNS = query_TGND @ key_TGSD.transpose(-1, -2) * SCALE
    weight_TGNS = logit_TGNS.masked_fill_(~is_seen_TGS[:, :, None], float("-inf")).softmax(dim=-1)
    return (weight_TGNS @ value_TGSD).flatten(1, 2)


def attend_blocks(
    query_TGND: torch.Tensor,
    key_GBSD: torch.Tensor,
    value_GBSD: torch.Tensor,
    block_TGk: torch.Tensor,
    position_T: torch.Tensor,
) -> torch.Tensor:
    """Causal attention of each query over its own chosen blocks, float32 [T, G, N, D]; S = 128 keys of a block.

    Goes block by block and takes the queries that chose it together, so the work grows with the chosen keys and not
    with the context. Waits for the device.
    """
    groups, blocks = key_GBSD.shape[:2]
    logit_TGNkS = query_TGND.new_empty(*query_TGND.shape[:3], block_TGk.shape[-1], BLOCK_SIZE)
    picks = {
        (group, block): (block_TGk[:, group] == block).nonzero(as_tuple=True)
        for group in range(groups)
        for block in range(blocks)
    }
    for (group, block), (token, pick) in picks.items():
        logit_TGNkS[token, group, :, pick] = query_TGND[token, group] @ (key_GBSD[group, block].T * SCALE)
    logit_TGNkS.masked_fill_(~is_seen(block_TGk, position_T)[:, :, None], float("-inf"))
    weight_TGNkS = logit_TGNkS.flatten(-2).softmax(dim=-1).view_as(logit_TGNkS)
    out_TGND = torch.zeros_like(query_TGND)
    for (group, block), (token, pick) in picks.items():
        # A query picks a block once, so no token comes twice.
        out_TGND[token, group] += weight_TGNkS[token, group, :, pick] @ value_GBSD[group, block]
    return out_TGND


def attend_decode(
    query: torch.Tensor,
    pool: torch.Tensor,
    key_slot: int,
    head_slots: int,
    chosen: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    rounds_products: bool,
) -> torch.Tensor:
    """float32 [T, H, 128] for uniform rows: T = R x Q tokens, row j of a request at position seq_len - Q + j.

    Arguments as in ``msa_model.ops.sparse_decode``. Queries are rounded to E4M3; tokens without any key get zeros.
    """
    rows = query.shape[0] // seq_lens.shape[0]
    token = torch.arange(query.shape[0], device=query.device)
    request_T = token // rows
    position_T = seq_lens[request_T] - rows + token % rows
    return _attend_rounded(
        query, pool, key_slot, head_slots, chosen, block_table, request_T, position_T, rounds_products
    )


def attend_prefill(
    query: torch.Tensor,
    pool: torch.Tensor,
    key_slot: int,
    head_slots: int,
    chosen: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    rounds_products: bool,
) -> torch.Tensor:
    """float32 [T, H, 128] for rows of any length: each request's query tokens are the last of its context.

    Arguments as in ``msa_model.ops.sparse_prefill``; rounding as in ``attend_decode``.
    """
    token = torch.arange(query.shape[0], device=query.device)
    request_T = torch.searchsorted(query_start_loc[1:], token.to(query_start_loc.dtype), right=True)
    position_T = seq_lens[request_T] - query_start_loc[request_T + 1] + token
    return _attend_rounded(
        query, pool, key_slot, head_slots, chosen, block_table, request_T, position_T, rounds_products
    )


def _attend_rounded(
    query: torch.Tensor,
    pool: torch.Tensor,
    key_slot: int,
    head_slots: int,
    chosen: torch.Tensor,
    block_table: torch.Tensor,
    request_T: torch.Tensor,
    position_T: torch.Tensor,
    rounds_products: bool,
) -> torch.Tensor:
    groups = chosen.shape[1]
    kv = SlotPages(pool)
    key_slots = key_slot + head_slots * torch.arange(groups, device=query.device)
    query_TGND = round_to_e4m3(query).unflatten(1, (groups, -1))
    # A stale entry of the block table may be no block at all.
    table_TM = block_table.long().clamp(0, pool.shape[0] - 1)[request_T]
    out = torch.empty_like(query, dtype=torch.float32)
    step = max(1, _MAX_TEMPORARY_ELEMENTS // (groups * chosen.shape[2] * BLOCK_SIZE * HEAD_DIM))
    for token in torch.arange(query.shape[0], device=query.device).split(step):
        out[token] = attend_pages(
            query_TGND[token],
            kv,
            key_slots,
            key_slots + 1,
            table_TM[token],
            chosen[token].long(),
            position_T[token],
            rounds_products=rounds_products,
        )
    return out.masked_fill_(position_T[:, None, None] < 0, 0.0)

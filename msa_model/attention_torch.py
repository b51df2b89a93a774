"""Block-sparse attention over the paged NVFP4 cache in plain torch, for CPU and CUDA.

The twin that kernels are checked against. Short queries (decode, draft verification) run with static shapes and no
wait for the device, so they can be captured in a CUDA graph; long queries (prefill) run request by request.

Shape letters: T query tokens, H query heads, G KV heads (and index queries), N query heads per KV head, D = 128,
M blocks of a block table, B blocks of a request, k chosen blocks, S keys.
"""

import torch

from msa_model.config import BLOCK_SIZE, HEAD_DIM, MSAShape
from msa_model.metadata import LongQuery, MSAMetadata
from msa_model.pages import LayerPages
from msa_model.selection import block_scores, select_blocks

SCALE = HEAD_DIM**-0.5
# Elements of one temporary tensor (64 MB of float32): queries are cut into pieces that stay below it.
MAX_TEMPORARY_ELEMENTS = 1 << 24


class TorchSparseAttention:
    """Attention of one layer, for the batch that ``metadata`` describes; holds no state between calls."""

    def __init__(self, shape: MSAShape) -> None:
        self.shape = shape

    def forward(
        self,
        metadata: MSAMetadata,
        query: torch.Tensor,
        index_query: torch.Tensor,
        pages: LayerPages,
        out: torch.Tensor,
    ) -> None:
        """Attend each query token to the chosen blocks of its own context, its own key included.

        ``query`` and ``out`` [T, H, 128], ``index_query`` [T, G, 128]; this step's keys are in ``pages`` already.
        Scores, softmax and sums are float32. Rows of ``out`` that belong to padding get arbitrary finite values.
        """
        tokens = metadata.short_tokens
        if tokens is None:
            tokens = torch.arange(query.shape[0], device=query.device)
        step = max(1, MAX_TEMPORARY_ELEMENTS // (metadata.max_blocks * BLOCK_SIZE * HEAD_DIM))
        for piece in tokens.split(step):
            attended = self._attend_short(metadata, piece, query[piece], index_query[piece], pages)
            out[piece] = attended.to(out.dtype)
        for request in metadata.long_queries:
            span = slice(request.start, request.end)
            self._attend_long(metadata, request, query[span], index_query[span], pages, out[span])

    def _attend_short(
        self,
        metadata: MSAMetadata,
        token_T: torch.Tensor,
        query_THD: torch.Tensor,
        index_query_TGD: torch.Tensor,
        pages: LayerPages,
    ) -> torch.Tensor:
        starts, seq_lens = metadata.query_start_loc, metadata.seq_lens
        # The first row that ends after the token; padding tokens beyond the last row fall to that row.
        row_T = torch.searchsorted(starts[1:], token_T.to(starts.dtype), right=True).clamp(max=seq_lens.shape[0] - 1)
        position_T = (seq_lens[row_T] - starts[row_T + 1] + token_T).clamp(min=0)
        table_TM = metadata.block_table[row_T, : metadata.max_blocks].long()

        index_key_TSD = pages.index.gather(table_TM, pages.index_slots)
        score_TGS = torch.einsum("tgd,tsd->tgs", index_query_TGD.float(), index_key_TSD)
        block_TGk, is_chosen_TGk = self._select(score_TGS, position_T)

        block_id_TGk = table_TM[:, None].expand(-1, block_TGk.shape[1], -1).gather(-1, block_TGk)
        key_position = block_TGk[..., None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE, device=token_T.device)
        is_seen = is_chosen_TGk[..., None] & (key_position <= position_T[:, None, None, None])
        is_seen_TGS = is_seen.flatten(-2)
        key_TGSD = pages.kv.gather(block_id_TGk, pages.key_slots[:, None])
        # A masked weight is 0, and 0 times a stale NaN would still be NaN.
        value_TGSD = pages.kv.gather(block_id_TGk, pages.value_slots[:, None]).masked_fill(~is_seen_TGS[..., None], 0.0)

        query_TGND = query_THD.float().unflatten(1, (self.shape.num_kv_heads, -1))
        logit = torch.einsum("tgnd,tgsd->tgns", query_TGND, key_TGSD) * SCALE
        weight = logit.masked_fill(~is_seen_TGS[:, :, None], float("-inf")).softmax(dim=-1)
        return torch.einsum("tgns,tgsd->tgnd", weight, value_TGSD).flatten(1, 2)

    def _attend_long(
        self,
        metadata: MSAMetadata,
        request: LongQuery,
        query_THD: torch.Tensor,
        index_query_TGD: torch.Tensor,
        pages: LayerPages,
        out_THD: torch.Tensor,
    ) -> None:
        seq_len = request.seq_len
        block_id_B = metadata.block_table[request.row, : -(-seq_len // BLOCK_SIZE)].long()
        index_key_SD = pages.index.read(block_id_B, pages.index_slots, seq_len)[0]
        key_GSD = pages.kv.read(block_id_B, pages.key_slots, seq_len)
        value_GSD = pages.kv.read(block_id_B, pages.value_slots, seq_len)
        position_T = torch.arange(seq_len - query_THD.shape[0], seq_len, device=query_THD.device)
        step = max(1, MAX_TEMPORARY_ELEMENTS // (self.shape.num_heads * seq_len))
        for start in range(0, query_THD.shape[0], step):
            span = slice(start, start + step)
            is_seen_TGS = self._mask(index_query_TGD[span], index_key_SD, position_T[span])
            query_TGND = query_THD[span].float().unflatten(1, (self.shape.num_kv_heads, -1))
            logit = torch.einsum("tgnd,gsd->tgns", query_TGND, key_GSD) * SCALE
            weight = logit.masked_fill(~is_seen_TGS[:, :, None], float("-inf")).softmax(dim=-1)
            attended = torch.einsum("tgns,gsd->tgnd", weight, value_GSD).flatten(1, 2)
            out_THD[span] = attended.to(out_THD.dtype)

    def _mask(
        self, index_query_TGD: torch.Tensor, index_key_SD: torch.Tensor, position_T: torch.Tensor
    ) -> torch.Tensor:
        """bool [T, G, S]: which keys each query attends to."""
        num_keys = index_key_SD.shape[0]
        num_blocks = -(-num_keys // BLOCK_SIZE)
        score_TGS = torch.einsum("tgd,sd->tgs", index_query_TGD.float(), index_key_SD)
        score_TGS = torch.nn.functional.pad(score_TGS, (0, num_blocks * BLOCK_SIZE - num_keys))
        block_TGk, is_chosen_TGk = self._select(score_TGS, position_T)
        is_chosen_TGB = torch.zeros(*block_TGk.shape[:2], num_blocks, dtype=torch.bool, device=block_TGk.device)
        is_chosen_TGB.scatter_(-1, block_TGk, is_chosen_TGk)
        key_S = torch.arange(num_keys, device=position_T.device)
        is_past_TS = key_S <= position_T[:, None]
        return is_chosen_TGB[..., key_S // BLOCK_SIZE] & is_past_TS[:, None]

    def _select(self, score_TGS: torch.Tensor, position_T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        newest_T = torch.div(position_T, BLOCK_SIZE, rounding_mode="floor")
        score_TGB = block_scores(score_TGS, position_T, BLOCK_SIZE)
        return select_blocks(score_TGB, newest_T, self.shape.topk_blocks, self.shape.local_blocks)

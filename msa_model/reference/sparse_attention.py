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
from msa_model.reference.block_attention import attend_blocks, attend_pages
from msa_model.reference.nvfp4 import round_to_e4m3
from msa_model.reference.selection import block_scores, select_blocks

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
        Queries of both kinds are rounded to E4M3 (fact M4); scores, softmax and sums are float32. Rows of ``out`` that
        belong to padding get arbitrary finite values.
        """
        query, index_query = round_to_e4m3(query), round_to_e4m3(index_query)
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
        score_TGS = index_query_TGD.float() @ index_key_TSD.transpose(1, 2)
        block_TGk = self._select(score_TGS, position_T)

        query_TGND = query_THD.float().unflatten(1, (self.shape.num_kv_heads, -1))
        return attend_pages(query_TGND, pages.kv, pages.key_slots, pages.value_slots, table_TM, block_TGk, position_T)

    def _attend_long(
        self,
        metadata: MSAMetadata,
        request: LongQuery,
        query_THD: torch.Tensor,
        index_query_TGD: torch.Tensor,
        pages: LayerPages,
        out_THD: torch.Tensor,
    ) -> None:
        seq_len, num_queries = request.seq_len, query_THD.shape[0]
        block_id_B = metadata.block_table[request.row, : -(-seq_len // BLOCK_SIZE)].long()
        index_key_SD = pages.index.read(block_id_B, pages.index_slots, seq_len).flatten(0, 2)
        key_GBSD = pages.kv.read(block_id_B, pages.key_slots, seq_len)
        value_GBSD = pages.kv.read(block_id_B, pages.value_slots, seq_len)
        position_T = torch.arange(seq_len - num_queries, seq_len, device=query_THD.device)
        scores_per_query = self.shape.num_kv_heads * index_key_SD.shape[0]
        logits_per_query = self.shape.num_heads * self.shape.topk_blocks * BLOCK_SIZE
        step = max(1, MAX_TEMPORARY_ELEMENTS // max(scores_per_query, logits_per_query))
        for start in range(0, num_queries, step):
            span = slice(start, start + step)
            score_TGS = (index_query_TGD[span].float().flatten(0, 1) @ index_key_SD.T).unflatten(
                0, (-1, self.shape.num_kv_heads)
            )
            block_TGk = self._select(score_TGS, position_T[span])
            query_TGND = query_THD[span].float().unflatten(1, (self.shape.num_kv_heads, -1))
            attended = attend_blocks(query_TGND, key_GBSD, value_GBSD, block_TGk, position_T[span])
            out_THD[span] = attended.flatten(1, 2).to(out_THD.dtype)

    def _select(self, score_TGS: torch.Tensor, position_T: torch.Tensor) -> torch.Tensor:
        newest_T = torch.div(position_T, BLOCK_SIZE, rounding_mode="floor")
        score_TGB = block_scores(score_TGS, position_T, BLOCK_SIZE)
        return select_blocks(score_TGB, newest_T, self.shape.topk_blocks, self.shape.local_blocks)

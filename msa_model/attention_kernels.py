"""Attention of one layer by kernels: scores of the index, selection, and attention to the chosen blocks.

Uniform rows (decode, verification of drafts) have static launches, which a CUDA graph captures; the others go through
the kernels for prefill. Nothing here waits for the device.
"""

import torch

from msa_model.batch_rows import UniformRows, VariedRows
from msa_model.config import MSAShape
from msa_model.metadata import MSAMetadata
from msa_model.ops.index_score import score_decode, score_prefill
from msa_model.ops.nvfp4 import pack
from msa_model.ops.select import select_decode, select_prefill
from msa_model.ops.sparse_decode import sparse_attention_decode
from msa_model.ops.sparse_prefill import sparse_attention_prefill
from msa_model.pages import LayerPages

# Elements of the scores of one piece of a prefill (256 MB of float32): longer ones are cut.
MAX_SCORES = 1 << 26


def pack_step(
    pages: LayerPages,
    slot_mapping: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    index_key: torch.Tensor | None,
) -> None:
    """As ``LayerPages.write``; padding tokens go nowhere."""
    pack(key, pages.kv.cache, pages.key_slots, slot_mapping)
    pack(value, pages.kv.cache, pages.value_slots, slot_mapping)
    if index_key is not None:
        pack(index_key, pages.index.cache, pages.index_slots, slot_mapping)


class KernelSparseAttention:
    """The same as ``TorchSparseAttention``, up to the tolerances of the ops; holds no state between calls."""

    def __init__(self, shape: MSAShape) -> None:
        self._topk_blocks, self._local_blocks = shape.topk_blocks, shape.local_blocks

    def forward(
        self,
        metadata: MSAMetadata,
        query: torch.Tensor,
        index_query: torch.Tensor,
        pages: LayerPages,
        out: torch.Tensor,
    ) -> None:
        """As ``TorchSparseAttention.forward``."""
        index_query = index_query.contiguous()
        uniform, varied = metadata.uniform, metadata.varied
        if uniform is not None:
            span = slice(uniform.num_tokens)
            self._attend_uniform(uniform, query[span], index_query[span], pages, out[span])
        if varied is not None:
            scores_per_token = index_query.shape[1] * varied.block_table.shape[1]
            for piece in varied.pieces(max(1, MAX_SCORES // scores_per_token)):
                span = slice(piece.first_token, piece.first_token + piece.num_tokens)
                self._attend_varied(piece, query[span], index_query[span], pages, out[span])

    def _attend_uniform(
        self, rows: UniformRows, query: torch.Tensor, index_query: torch.Tensor, pages: LayerPages, out: torch.Tensor
    ) -> None:
        index, table, seq_lens = pages.index.cache, rows.block_table, rows.seq_lens
        scores = score_decode(index_query, index, pages.index_slot, table, seq_lens, lets_next_start=True)
        chosen = select_decode(
            scores, seq_lens, topk_blocks=self._topk_blocks, local_blocks=self._local_blocks, follows_score=True
        )
        place = (pages.kv.cache, pages.first_key_slot, pages.head_slots)
        sparse_attention_decode(query, *place, chosen, table, seq_lens, follows_selection=True, out=out)

    def _attend_varied(
        self, rows: VariedRows, query: torch.Tensor, index_query: torch.Tensor, pages: LayerPages, out: torch.Tensor
    ) -> None:
        index, batch = pages.index.cache, (rows.block_table, rows.seq_lens, rows.query_start_loc)
        scores = score_prefill(index_query, index, pages.index_slot, *batch, max_query_len=rows.max_query_len)
        chosen = select_prefill(scores, rows.positions, topk_blocks=self._topk_blocks, local_blocks=self._local_blocks)
        place = (pages.kv.cache, pages.first_key_slot, pages.head_slots)
        sparse_attention_prefill(query, *place, chosen, *batch, max_query_len=rows.max_query_len, out=out)

"""Attention of the layers that have no index branch: over the whole context, from the same pages.

M3.1 has no such layer; M3's first three are (``sparse_attention_freq``).
"""

from dataclasses import replace

import torch

from msa_model.config import MSAShape
from msa_model.metadata import MSAMetadata
from msa_model.pages import LayerPages
from msa_model.reference.sparse_attention import TorchSparseAttention


class TorchDenseAttention:
    """Sparse attention that is left no choice: as many blocks are taken as a context can have."""

    def __init__(self, shape: MSAShape, max_blocks: int) -> None:
        """``max_blocks``: of the longest context."""
        self.num_kv_heads = shape.num_kv_heads
        topk_blocks = max(max_blocks, shape.topk_blocks)
        self.sparse = TorchSparseAttention(replace(shape, topk_blocks=topk_blocks))

    def forward(self, metadata: MSAMetadata, query: torch.Tensor, pages: LayerPages, out: torch.Tensor) -> None:
        """As ``TorchSparseAttention.forward``, without an index query.

        ``pages.index_slots`` may be any slot: whatever its scores are, every block is taken.
        """
        no_index = query.new_zeros(query.shape[0], self.num_kv_heads, query.shape[2])
        self.sparse.forward(metadata, query, no_index, pages, out)

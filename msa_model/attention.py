"""The attention of one decoder layer: projections, norms, rotary embedding, cache write, sparse attention.

Owns no cache: K, V and index keys go to the model's two pools.
"""

from typing import Any

import torch
from torch import nn
from vllm.compilation.breakable_cudagraph import eager_break_during_capture
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.layernorm import GemmaRMSNorm
from vllm.model_executor.layers.linear import (
    MinimaxM3QKVParallelLinearWithIndexer,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.model_executor.layers.rotary_embedding import get_rope

from msa_model.cache import IndexPool, KVPool
from msa_model.config import HEAD_DIM, MSAShape
from msa_model.pages import LayerPages, key_slot
from wire.token_split import TokenSplit


class MSAAttention(nn.Module):
    """MSA (fact M2) of layer ``layer``: one fused projection to q, k, v, index query and index key.

    A layer without an index branch (``MSAShape.dense_layers``) has no index projections and attends to everything.
    """

    key_slots: torch.Tensor
    value_slots: torch.Tensor
    index_slots: torch.Tensor

    def __init__(
        self,
        config: Any,
        layer: int,
        shape: MSAShape,
        pools: tuple[KVPool, IndexPool],
        quant_config: QuantizationConfig | None,
        prefix: str,
        *,
        split: TokenSplit,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.pools = pools
        self.has_index = layer not in shape.dense_layers
        self.qkv_proj = _qkv_proj(config, self.has_index, quant_config, f"{prefix}.qkv_proj")
        self.o_proj = _o_proj(config, quant_config, f"{prefix}.o_proj", split)
        for name in ("q_norm", "k_norm", *(("index_q_norm", "index_k_norm") if self.has_index else ())):
            self.add_module(name, GemmaRMSNorm(HEAD_DIM, eps=config.rms_norm_eps))
        self.rotary_emb = get_rope(
            HEAD_DIM,
            max_position=config.max_position_embeddings,
            rope_parameters={
                "rope_theta": config.rope_theta,
                "partial_rotary_factor": config.partial_rotary_factor,
            },
        )
        self.first_key_slot, self.head_slots = key_slot(layer, 0, shape.num_layers), 2 * shape.num_layers
        key_slots = [self.first_key_slot + head * self.head_slots for head in range(shape.num_kv_heads)]
        # Buffers, so that they follow the model to its device: a list would be copied there at each call.
        self.register_buffer("key_slots", torch.tensor(key_slots), persistent=False)
        self.register_buffer("value_slots", torch.tensor(key_slots) + 1, persistent=False)
        # A dense layer reads none, whatever is in it.
        self.index_slot = shape.index_slot(layer) if self.has_index else 0
        self.register_buffer("index_slots", torch.tensor([self.index_slot]), persistent=False)

    def layer_pages(self) -> LayerPages:
        """This layer's slots in the bound pools."""
        kv, index = (pool.pages for pool in self.pools)
        assert kv is not None
        assert index is not None
        return LayerPages(
            kv=kv,
            index=index,
            key_slots=self.key_slots,
            value_slots=self.value_slots,
            index_slots=self.index_slots,
            first_key_slot=self.first_key_slot,
            head_slots=self.head_slots,
            index_slot=self.index_slot,
        )

    def forward(self, positions: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """``positions`` int [T], ``hidden`` [T, hidden_size] -> [T, hidden_size], summed over ranks."""
        return self.o_proj(self.heads(positions, hidden))[0]

    def heads(self, positions: torch.Tensor, hidden: torch.Tensor, part: tuple[int, int] | None = None) -> torch.Tensor:
        """What this rank's heads attend to, [T, heads * 128]; ``positions`` int [T], ``hidden`` [T, hidden_size].

        ``part``: first token and end, where T are those of a part of the step, and padding behind them.
        """
        heads, kv_heads = self.shape.num_heads, self.shape.num_kv_heads
        qkv, _ = self.qkv_proj(hidden)
        sizes = [heads * HEAD_DIM, *[kv_heads * HEAD_DIM] * 2]
        if self.has_index:
            sizes += [kv_heads * HEAD_DIM, HEAD_DIM]
        query, key, value, *index = qkv.split(sizes, dim=-1)
        query, key = self.rotary_emb(positions, _per_head(self.q_norm, query), _per_head(self.k_norm, key))
        index_query, index_key = None, None
        if self.has_index:
            index_query, index_key = self.rotary_emb(
                positions, _per_head(self.index_q_norm, index[0]), _per_head(self.index_k_norm, index[1])
            )
        out = torch.zeros_like(query)
        run_attention(self, query, key, value, index_query, index_key, out, part)
        return out


def _o_proj(
    config: Any, quant_config: QuantizationConfig | None, prefix: str, split: TokenSplit
) -> RowParallelLinear | ReplicatedLinear:
    sizes = (config.num_attention_heads * HEAD_DIM, config.hidden_size)
    if split.enable_sp:  # all heads of the rank's own tokens (fact P2)
        return ReplicatedLinear(*sizes, bias=False, quant_config=quant_config, prefix=prefix)
    return RowParallelLinear(
        *sizes, bias=False, quant_config=quant_config, prefix=prefix, reduce_results=not split.enable_dbo
    )


def _qkv_proj(
    config: Any, has_index: bool, quant_config: QuantizationConfig | None, prefix: str
) -> QKVParallelLinear | MinimaxM3QKVParallelLinearWithIndexer:
    sizes = (config.hidden_size, HEAD_DIM, config.num_attention_heads, config.num_key_value_heads)
    if not has_index:
        return QKVParallelLinear(*sizes, bias=False, quant_config=quant_config, prefix=prefix)
    sparse = config.sparse_attention_config
    index_sizes = (sparse["sparse_num_index_heads"], sparse["sparse_index_dim"])
    return MinimaxM3QKVParallelLinearWithIndexer(*sizes, *index_sizes, quant_config=quant_config, prefix=prefix)


def _per_head(norm: GemmaRMSNorm, x: torch.Tensor) -> torch.Tensor:
    return norm(x.reshape(-1, HEAD_DIM)).view(x.shape)


# Outermost decorator. In a piecewise graph the capture is cut here and this runs eagerly at each replay with that
# step's metadata, writing into ``out`` alone; in a full graph it is captured.
@eager_break_during_capture
def run_attention(
    layer: MSAAttention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    index_query: torch.Tensor | None,
    index_key: torch.Tensor | None,
    out: torch.Tensor,
    part: tuple[int, int] | None = None,
) -> None:
    """Store these keys and values, then attend; all tensors [T, heads * 128], ``out`` is written in place.

    ``index_query`` and ``index_key`` are None in a dense layer; ``part`` as in ``MSAAttention.heads``.
    """
    metadata_of = get_forward_context().attn_metadata
    if not isinstance(metadata_of, dict):  # a profiling run, before any cache is bound
        return
    kv_pool = layer.pools[0]
    metadata = metadata_of[kv_pool.layer_name]
    if part is not None:
        metadata = metadata.part(*part)
    num_tokens = min(metadata.num_tokens, query.shape[0])

    def by_head(x: torch.Tensor) -> torch.Tensor:
        return x[:num_tokens].unflatten(-1, (-1, HEAD_DIM))

    pages, impl = layer.layer_pages(), kv_pool.impl
    slots = metadata.slot_mapping[:num_tokens]
    if index_query is None or index_key is None:
        impl.store(slots, by_head(key), by_head(value), None, pages)
        impl.dense_op.forward(metadata, by_head(query), pages, by_head(out))
        return
    impl.store(slots, by_head(key), by_head(value), by_head(index_key), pages)
    impl.op.forward(metadata, by_head(query), by_head(index_query), pages, by_head(out))

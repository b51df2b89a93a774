"""The two pools that own the model's pages in vLLM's cache: one for K and V, one for index keys.

One pool holds the slots of every layer, so that a block is one page per pool; in a block-outermost layout vLLM backs
both pages of a block with one contiguous row, which is what a KV connector moves. Slots and bytes: ``pages``.
"""

from typing import TYPE_CHECKING

import torch
from torch import nn
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.kv_cache_interface import AttentionSpec, FullAttentionSpec, KVQuantMode, MLAAttentionSpec, SparseCacheRole

from msa_model.backend import MSABackend, MSAImpl, MSAIndexBackend
from msa_model.config import HEAD_DIM, MSAShape, check_block_size
from msa_model.pages import STATE_BYTES, SlotPages, check_row

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class CachePool(nn.Module, AttentionLayerBase):
    """A cache layer in vLLM's sense that computes nothing; subclasses say what a page holds."""

    backend: type[MSABackend]

    def __init__(self, name: str, num_slots: int, impl: MSAImpl) -> None:
        super().__init__()
        layers = get_current_vllm_config().compilation_config.static_forward_context
        if name in layers:
            raise ValueError(f"two cache layers are named {name}")
        layers[name] = self
        self.layer_name, self.num_slots, self.impl = name, num_slots, impl
        self.kv_cache = torch.tensor([])
        self.pages: SlotPages | None = None

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Take vLLM's memory: uint8 [num_blocks, num_slots, 128, 72]. Raises ValueError for another page layout."""
        self.kv_cache, self.pages = kv_cache, SlotPages(kv_cache)

    def get_attn_backend(self) -> type[MSABackend]:
        return self.backend


class KVPool(CachePool):
    """Keys and values of all layers, heads outermost."""

    backend = MSABackend

    def __init__(self, name: str, shape: MSAShape, impl: MSAImpl) -> None:
        super().__init__(name, 2 * shape.num_layers * shape.num_kv_heads, impl)
        self.num_kv_heads = shape.num_kv_heads

    def get_kv_cache_spec(self, vllm_config: "VllmConfig") -> AttentionSpec:
        check_block_size(vllm_config.cache_config.block_size)
        return FullAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=self.num_kv_heads,
            head_size=HEAD_DIM,
            dtype=torch.uint8,
            # The mode NVFP4 would promise data of all heads before scales of all heads, which is not our slot; dtype
            # and byte sizes say everything that vLLM needs.
            kv_quant_mode=KVQuantMode.NONE,
            num_head_slots=self.num_slots,
            state_content_bytes=STATE_BYTES,
        )


class IndexPool(CachePool):
    """Index keys of all layers that have an index branch, one head, the same on every tensor-parallel rank.

    vLLM binds it after the K/V pool, so this one checks that the two make a row where a row is needed.
    """

    backend = MSAIndexBackend

    def __init__(self, name: str, shape: MSAShape, impl: MSAImpl, kv_pool: KVPool) -> None:
        super().__init__(name, shape.num_index_layers, impl)
        config = get_current_vllm_config()
        self.needs_row = config.kv_transfer_config is not None
        self.has_drafter = config.speculative_config is not None
        # In a tuple, as a module attribute would make the K/V pool a child of this one as well.
        self._row_start = (kv_pool,)

    def get_kv_cache_spec(self, vllm_config: "VllmConfig") -> AttentionSpec:
        check_block_size(vllm_config.cache_config.block_size)
        # vLLM takes this spec for keys alone, replicated over tensor-parallel ranks.
        return MLAAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=1,
            head_size=HEAD_DIM,
            dtype=torch.uint8,
            kv_quant_mode=KVQuantMode.NONE,
            num_head_slots=self.num_slots,
            state_content_bytes=STATE_BYTES,
            cache_role=SparseCacheRole.INDEXER,
        )

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """As ``CachePool``; with a KV connector it also raises ValueError unless a block is one row."""
        super().bind_kv_cache(kv_cache)
        if not self.needs_row:
            return
        try:
            # A drafter's pages follow ours in the row; they are not ours to see.
            check_row([self._row_start[0].kv_cache, kv_cache], is_whole_row=not self.has_drafter)
        except ValueError as error:
            raise ValueError(
                f"a KV connector needs one row per block, but {error}; use the block-outermost layout BLHNC "
                "(VLLM_KV_CACHE_LAYOUT unset, and a connector that asks for it)"
            ) from error

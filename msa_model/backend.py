"""How vLLM's cache and attention machinery sees us: two backends, one implementation, no kernels of vLLM's own."""

from collections.abc import Callable
from typing import ClassVar, Protocol

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionImplBase
from vllm.v1.kv_cache_interface import KVCacheLayout, KVCacheSpec

from msa_model.attention_choice import choose_attention, log_choice
from msa_model.config import BLOCK_SIZE, HEAD_DIM, MSAShape
from msa_model.dense_attention import TorchDenseAttention
from msa_model.metadata import MSAMetadata, MSAMetadataBuilder
from msa_model.pages import LayerPages
from msa_model.reference.block_attention import SCALE
from msa_model.reference.sparse_attention import TorchSparseAttention


class SparseAttention(Protocol):
    """Attention of one layer, for the batch that ``metadata`` describes."""

    def forward(
        self,
        metadata: MSAMetadata,
        query: torch.Tensor,
        index_query: torch.Tensor,
        pages: LayerPages,
        out: torch.Tensor,
    ) -> None:
        """Attend each query token to the chosen blocks of its own context; ``TorchSparseAttention`` says more."""


class MSAImpl(AttentionImplBase[MSAMetadata]):
    """The attention implementation in vLLM's sense: kernels where there are some for the device, else plain torch."""

    def __init__(self, shape: MSAShape, max_blocks: int, device: torch.device) -> None:
        """``max_blocks``: of the longest context."""
        self.num_heads, self.num_kv_heads = shape.num_heads, shape.num_kv_heads
        self.head_size, self.scale = HEAD_DIM, SCALE
        self.kv_cache_dtype = "nvfp4"
        choice = choose_attention(shape, device)
        log_choice(choice)
        self.uses_kernels = choice.uses_kernels
        self.uses_torch = not choice.uses_kernels or bool(shape.dense_layers)
        self.op: SparseAttention = TorchSparseAttention(shape)
        self._write: Callable[..., None] = LayerPages.write
        self.dense_op = TorchDenseAttention(shape, max_blocks)
        if choice.uses_kernels:
            # Not at the top: an engine on CPU has no use for Triton.
            from msa_model.attention_kernels import KernelSparseAttention, pack_step

            self.op, self._write = KernelSparseAttention(shape), pack_step

    def store(
        self,
        slot_mapping: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        index_key: torch.Tensor | None,
        pages: LayerPages,
    ) -> None:
        """Quantise and store a step's ``key`` and ``value`` [T, kv_heads, 128] and ``index_key`` [T, 1, 128]."""
        self._write(pages, slot_mapping, key, value, index_key)


class MSABackend(AttentionBackend):
    """Backend of the K/V pool."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "nvfp4"]

    @staticmethod
    def get_name() -> str:
        return "MSA"

    @staticmethod
    def get_impl_cls() -> type[MSAImpl]:
        return MSAImpl

    @staticmethod
    def get_builder_cls() -> type[MSAMetadataBuilder]:
        return MSAMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: KVCacheSpec | None = None) -> list[int]:
        return [BLOCK_SIZE]

    @classmethod
    def is_sparse(cls) -> bool:
        return True

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Block-outermost first, which makes rows. The other serves an engine that hands nothing over."""
        return (KVCacheLayout.BLHNC, KVCacheLayout.LBHNC)


class MSAIndexBackend(MSABackend):
    """Backend of the index pool; a name of its own keeps vLLM from merging the two pools' specs."""

    @staticmethod
    def get_name() -> str:
        return "MSA_INDEX"

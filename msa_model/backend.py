"""How vLLM's cache and attention machinery sees us: two backends, one implementation, no kernels of vLLM's own."""

from typing import ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionImplBase
from vllm.v1.kv_cache_interface import KVCacheLayout, KVCacheSpec

from msa_model.config import BLOCK_SIZE, HEAD_DIM, MSAShape
from msa_model.dense_attention import TorchDenseAttention
from msa_model.metadata import MSAMetadata, MSAMetadataBuilder
from msa_model.reference.sparse_attention import SCALE, TorchSparseAttention


class MSAImpl(AttentionImplBase[MSAMetadata]):
    """The attention implementation in vLLM's sense. A kernel replaces ``op`` and ``dense_op``, nothing else."""

    def __init__(self, shape: MSAShape, max_blocks: int) -> None:
        """``max_blocks``: of the longest context."""
        self.num_heads, self.num_kv_heads = shape.num_heads, shape.num_kv_heads
        self.head_size, self.scale = HEAD_DIM, SCALE
        self.kv_cache_dtype = "nvfp4"
        self.op = TorchSparseAttention(shape)
        self.dense_op = TorchDenseAttention(shape, max_blocks)


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

"""What one step tells the attention: where each request's tokens, context and blocks are."""

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)

from msa_model.batch_rows import UniformRows, VariedRows, split_rows
from msa_model.config import BLOCK_SIZE
from msa_model.micro_batch import metadata_of
from msa_model.reference import nvfp4

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import AttentionSpec

# Query tokens up to which a request takes the path with static shapes: one token and 7 drafts (fact M8).
MAX_SHORT_QUERY_LEN = 8


@dataclass(frozen=True)
class LongQuery:
    """One request of the batch with more query tokens than the short path takes; host values."""

    row: int
    start: int
    """First of its tokens in the batch."""
    end: int
    seq_len: int
    """Tokens of context, its query tokens included."""


@dataclass
class MSAMetadata(AttentionMetadata):
    """One step's batch of R requests and T tokens; device tensors are persistent buffers under CUDA graphs."""

    num_tokens: int
    max_blocks: int
    """Blocks of the longest context; an upper bound is fine."""
    seq_lens: torch.Tensor
    """int [R]; 0 in padding rows."""
    query_start_loc: torch.Tensor
    """int [R + 1]."""
    block_table: torch.Tensor
    """int [R, M]; entries beyond a request's own blocks are stale."""
    slot_mapping: torch.Tensor
    """int [T]; -1 for padding tokens."""
    long_queries: list[LongQuery]
    """For plain torch alone, like ``short_tokens``."""
    short_tokens: torch.Tensor | None
    """int64 tokens of the short requests, None if every request is short."""
    uniform: UniformRows | None = None
    """For kernels alone, like ``varied``."""
    varied: VariedRows | None = None
    parts: dict[tuple[int, int], "MSAMetadata"] = field(default_factory=dict)
    """Of the step, by first token and end, as far as they were asked for."""

    def part(self, start: int, end: int) -> "MSAMetadata":
        """What the attention sees of tokens ``start`` to ``end``; made once for all layers."""
        if (start, end) not in self.parts:
            self.parts[start, end] = metadata_of(self, start, end)
        return self.parts[start, end]

    @property
    def num_uniform_tokens(self) -> int:
        """First tokens of the step that belong to uniform rows, which no part may cut; a host value."""
        return 0 if self.uniform is None else self.uniform.num_tokens


class MSAMetadataBuilder(AttentionMetadataBuilder[MSAMetadata]):
    """Builds the metadata once a step; both pools use the same."""

    # Full graphs for batches whose queries have one same, small length: decode and verification of drafts.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    @classmethod
    def get_cudagraph_support(cls, vllm_config: "VllmConfig", kv_cache_spec: "AttentionSpec") -> AttentionCGSupport:
        """As ``_cudagraph_support``, unless drafts make queries too long for the path with static shapes.

        The other path has positions and lengths of its own in its metadata, which a graph would keep from its capture.
        """
        if 1 + vllm_config.num_speculative_tokens > MAX_SHORT_QUERY_LEN:
            return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
        return cls._cudagraph_support

    def __init__(
        self, kv_cache_spec: "AttentionSpec", layer_names: list[str], vllm_config: "VllmConfig", device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        impl = vllm_config.compilation_config.static_forward_context[layer_names[0]].impl
        self._uses_kernels, self._uses_torch = impl.uses_kernels, impl.uses_torch
        if self._uses_kernels:
            # Requests of one token and its drafts first.
            self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        if self._uses_torch:
            nvfp4.warm_up(device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> MSAMetadata:
        """Metadata of one step. Waits for the device only for plain torch, and if a request has a long query."""
        common = common_attn_metadata
        rows = common.num_reqs
        long_queries, short_tokens = split_by_query_len(common) if self._uses_torch else ([], None)
        uniform, varied = split_rows(common, self.reorder_batch_threshold or 1) if self._uses_kernels else (None, None)
        return MSAMetadata(
            num_tokens=common.num_actual_tokens,
            max_blocks=-(-common.max_seq_len // BLOCK_SIZE),
            seq_lens=common.seq_lens[:rows],
            query_start_loc=common.query_start_loc[: rows + 1],
            block_table=common.block_table_tensor[:rows],
            slot_mapping=common.slot_mapping,
            long_queries=long_queries,
            short_tokens=short_tokens,
            uniform=uniform,
            varied=varied,
        )


def split_by_query_len(common: CommonAttentionMetadata) -> tuple[list[LongQuery], torch.Tensor | None]:
    """The long queries of a batch, and the tokens of its short ones (None: there is no long query)."""
    if common.max_query_len <= MAX_SHORT_QUERY_LEN:
        return [], None
    rows = common.num_reqs
    starts = common.query_start_loc_cpu[: rows + 1].tolist()
    # seq_lens_cpu_upper_bound may be short (V1's draft model lengthens contexts on the device alone) or long (drafts
    # that were rejected). A prefill step can afford to wait for the exact values.
    seq_lens = common.seq_lens[:rows].cpu().tolist()
    long_queries: list[LongQuery] = []
    short_tokens: list[int] = []
    for row, (start, end) in enumerate(itertools.pairwise(starts)):
        if end - start > MAX_SHORT_QUERY_LEN:
            long_queries.append(LongQuery(row, start, end, seq_lens[row]))
        else:
            short_tokens.extend(range(start, end))
    if not long_queries:
        return [], None
    return long_queries, torch.tensor(short_tokens, dtype=torch.int64, device=common.query_start_loc.device)

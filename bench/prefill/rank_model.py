"""The model as a rank of an engine has it, without the engine: real layers, cache and metadata, random weights.

Owns nearly all that this benchmark says to vLLM.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn
from vllm.config import (
    CacheConfig,
    CompilationConfig,
    CompilationMode,
    ParallelConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.distributed import get_tp_group, parallel_state
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from bench.prefill.rounded import rounded_layer
from bench.prefill.weights import fill
from msa_model.config import BLOCK_SIZE
from msa_model.hf_config import MiniMaxM31FlashConfig
from msa_model.metadata import MSAMetadata, MSAMetadataBuilder
from msa_model.model import DecoderLayer, MSAModel
from msa_model.pages import STATE_BYTES
from msa_model.quant import MSAQuantConfig
from wire.token_split import TOKEN_SPLIT_KEY, TokenSplit


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one prompt as a way's model takes it."""

    positions: torch.Tensor
    """int64 [T]."""
    metadata: dict[str, MSAMetadata]
    """By the names of both pools."""


class RankModel:
    """One rank's model for one way to split tokens, with a cache of its own.

    Args:
        values: config.json.
        tp_size: ranks of the model; vLLM's group must know of as many.
        max_tokens: of the longest prompt.
    """

    def __init__(
        self, values: dict[str, Any], way: TokenSplit, *, tp_size: int, max_tokens: int, device: torch.device
    ) -> None:
        config = MiniMaxM31FlashConfig(**values)
        self.device, self.hidden_size = device, int(config.hidden_size)
        self._max_blocks = -(-max_tokens // BLOCK_SIZE)
        self.vllm_config = engine_config(config, tp_size, torch.bfloat16, way, self._max_blocks * BLOCK_SIZE)
        # As an engine's worker does, else norms run in plain torch where vLLM has a kernel.
        self.vllm_config.kernel_config.ir_op_priority.set_default()
        with set_current_vllm_config(self.vllm_config), default_dtype(torch.bfloat16), device:
            self.model = MSAModel(self.vllm_config, "model")
            fill(self.model, tp_rank=get_tp_group().rank_in_group, tp_size=tp_size)
            finish_loading(self.model)
        bind_cache(self.model, 1 + self._max_blocks, device)
        self._all_layers = self.model.layers
        pools = [self.model.kv_pool.layer_name, self.model.index_pool.layer_name]
        self._pools = pools
        spec = self.model.kv_pool.get_kv_cache_spec(self.vllm_config)
        self._builder = MSAMetadataBuilder(spec, pools, self.vllm_config, device)

    @property
    def layers(self) -> nn.ModuleList:
        return self.model.layers

    def use_layers(self, count: int) -> None:
        """Run the first ``count`` layers alone from now on."""
        self.model.layers = self._all_layers[:count]

    def step(self, context: int, num_tokens: int) -> Step:
        """Tokens behind ``context`` of one prompt, whose blocks lie scattered over the cache."""
        order = torch.randperm(self._max_blocks, generator=torch.Generator().manual_seed(3)).int() + 1
        position = torch.arange(context, context + num_tokens, device=self.device)
        common = batch_of([(context, num_tokens)], order[None].to(self.device))
        return Step(position, dict.fromkeys(self._pools, self._builder.build(0, common)))

    def run(self, step: Step, hidden: torch.Tensor) -> torch.Tensor:
        """Normed hidden states after the layers in use, [T, hidden_size], of embeddings of this shape."""
        with self.in_step(step):
            found: torch.Tensor = self.model(None, step.positions, hidden)
        return found

    def run_layer(self, number: int, step: Step, hidden: torch.Tensor) -> torch.Tensor:
        """One layer's output [T, hidden_size], before any norm."""
        layer, split = self._all_layers[number], self.model.split_forward
        with self.in_step(step):
            if split is None:
                found: torch.Tensor = layer(step.positions, hidden)
                return found
            return split([layer], nn.Identity(), step.positions, hidden)

    def run_layer_rounded(self, number: int, step: Step, hidden: torch.Tensor) -> torch.Tensor:
        """As ``run_layer`` of the plain way, with what SP exchanges rounded to MXFP8."""
        with self.in_step(step):
            return rounded_layer(cast("DecoderLayer", self._all_layers[number]), step.positions, hidden)

    @contextmanager
    def in_step(self, step: Step) -> Iterator[None]:
        metadata: Any = step.metadata
        with set_forward_context(metadata, self.vllm_config, num_tokens=len(step.positions)):
            yield


def batch_of(requests: Sequence[tuple[int, int]], block_table: torch.Tensor) -> CommonAttentionMetadata:
    """A step as vLLM's runner describes it to a metadata builder.

    Args:
        requests: of each its context when the step begins, and its new tokens.
        block_table: int32 [requests, blocks], on the model's device.
    """
    device, lengths = block_table.device, [new for _, new in requests]
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    slots = []
    for row, (context, new) in enumerate(requests):
        position = torch.arange(context, context + new, device=device)
        slots.append(block_table[row, position // BLOCK_SIZE].long() * BLOCK_SIZE + position % BLOCK_SIZE)
    ends = [context + new for context, new in requests]
    return CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(ends, dtype=torch.int32, device=device),
        num_reqs=len(requests),
        num_actual_tokens=sum(lengths),
        max_query_len=max(lengths),
        max_seq_len=max(ends),
        block_table_tensor=block_table,
        slot_mapping=torch.cat(slots),
    )


def engine_config(
    config: MiniMaxM31FlashConfig, tp_size: int, dtype: torch.dtype, way: TokenSplit, max_tokens: int
) -> VllmConfig:
    """What the model asks an engine's configuration for, as of a worker that runs without CUDA graphs."""
    vllm_config = VllmConfig(
        cache_config=CacheConfig(block_size=BLOCK_SIZE),
        parallel_config=ParallelConfig(tensor_parallel_size=tp_size, distributed_executor_backend="external_launcher"),
        # vLLM's own kernels for norms and activations, as under --enforce-eager.
        compilation_config=CompilationConfig(mode=CompilationMode.NONE, custom_ops=["all"]),
    )
    vllm_config.additional_config = {TOKEN_SPLIT_KEY: way.model_dump()}
    vllm_config.model_config = SimpleNamespace(
        hf_text_config=config, dtype=dtype, head_dtype=None, max_model_len=max_tokens
    )
    vllm_config.quant_config = MSAQuantConfig.from_config(config.quantization_config)
    return vllm_config


def join(tp_size: int, rank: int, meeting: str, device: torch.device) -> None:
    """Become rank ``rank`` of a tensor-parallel group over NCCL or gloo; ``meeting``: a file that all ranks name."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    parallel = ParallelConfig(distributed_executor_backend="external_launcher")
    with set_current_vllm_config(VllmConfig(parallel_config=parallel)):
        parallel_state.init_distributed_environment(tp_size, rank, f"file://{meeting}", rank, backend)
        parallel_state.initialize_model_parallel(tp_size)
    if device.type == "cuda":
        from vllm.v1.worker.workspace import init_workspace_manager

        init_workspace_manager(device)


def leave() -> None:
    """The end of ``join``; models are of no use after it."""
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()


def finish_loading(model: nn.Module) -> None:
    """What vLLM does once all weights are there: each layer puts them into its kernel's form."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None and hasattr(method, "process_weights_after_loading"):
            method.process_weights_after_loading(module)


def bind_cache(model: MSAModel, num_blocks: int, device: torch.device | None = None) -> None:
    """An empty cache in which each block is one row; the first block belongs to no request."""
    pools = (model.kv_pool, model.index_pool)
    slots = [pool.num_slots for pool in pools]
    rows = torch.zeros(num_blocks, sum(slots), BLOCK_SIZE, STATE_BYTES, dtype=torch.uint8, device=device)
    pools[0].bind_kv_cache(rows[:, : slots[0]])
    pools[1].bind_kv_cache(rows[:, slots[0] :])


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

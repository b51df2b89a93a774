"""The decoder and its vLLM model class: what the layers are made of and in which order they run."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.activation import SiluAndMulWithClamp
from vllm.model_executor.layers.fused_moe import FusedMoEFactory, GateLinear
from vllm.model_executor.layers.layernorm import GemmaRMSNorm
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.utils import maybe_prefix
from vllm.sequence import IntermediateTensors

from msa_model.attention import MSAAttention
from msa_model.backend import MSAImpl
from msa_model.cache import IndexPool, KVPool
from msa_model.config import BLOCK_SIZE, MSAShape, check_engine_config, check_ranks
from msa_model.loading import load_weights
from msa_model.split_forward import SplitForward
from msa_model.split_settings import split_settings
from wire.token_split import TokenSplit


class DenseMLP(nn.Module):
    """SwiGLU-OAI feed-forward layer: the dense layers, and the shared expert of the others."""

    def __init__(
        self,
        config: Any,
        size: int,
        quant_config: QuantizationConfig | None,
        prefix: str,
        *,
        reduce_results: bool = True,
    ) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size, [size] * 2, bias=False, quant_config=quant_config, prefix=f"{prefix}.gate_up_proj"
        )
        self.down_proj = RowParallelLinear(
            size,
            config.hidden_size,
            bias=False,
            reduce_results=reduce_results,
            quant_config=quant_config,
            prefix=f"{prefix}.down_proj",
        )
        self.activation = SiluAndMulWithClamp(
            swiglu_limit=config.swiglu_limit, alpha=config.swiglu_alpha, beta=config.swiglu_beta
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.activation(self.gate_up_proj(hidden)[0]))[0]


class SparseMoE(nn.Module):
    """Routed experts, and a shared expert that every token passes."""

    def __init__(
        self, config: Any, quant_config: QuantizationConfig | None, prefix: str, *, reduce_results: bool = True
    ) -> None:
        super().__init__()
        self.num_experts = num_experts = config.num_local_experts
        self.e_score_correction_bias = nn.Parameter(torch.zeros(num_experts, dtype=torch.float32), requires_grad=False)
        # Routing in float32: a rounded score would change which experts a token gets.
        self.gate = GateLinear(
            config.hidden_size,
            num_experts,
            bias=False,
            params_dtype=torch.float32,
            out_dtype=torch.float32,
            prefix=f"{prefix}.gate",
        )
        self.shared_experts = (
            DenseMLP(
                config,
                config.intermediate_size * config.n_shared_experts,
                quant_config,
                f"{prefix}.shared_experts",
                reduce_results=False,
            )
            if config.n_shared_experts
            else None
        )
        self.experts = FusedMoEFactory(
            num_experts=num_experts,
            top_k=config.num_experts_per_tok,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            scoring_func=config.scoring_func,
            e_score_correction_bias=self.e_score_correction_bias,
            renormalize=True,
            activation="swigluoai_uninterleave",
            swiglu_limit=config.swiglu_limit,
            swiglu_alpha=config.swiglu_alpha,
            swiglu_beta=config.swiglu_beta,
            routed_scaling_factor=config.routed_scaling_factor,
            router_logits_dtype=torch.float32,
            shared_experts=self.shared_experts,
            quant_config=quant_config,
            reduce_results=reduce_results,
            prefix=f"{prefix}.experts",
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.experts(hidden_states=hidden, router_logits=self.scores(hidden))

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """The router's, float32 [T, num_experts]."""
        return self.gate(hidden)[0]


class DecoderLayer(nn.Module):
    """Attention and a feed-forward part, each behind a norm and added to the residual stream."""

    def __init__(
        self,
        config: Any,
        layer: int,
        shape: MSAShape,
        pools: tuple[KVPool, IndexPool],
        quant_config: QuantizationConfig | None,
        prefix: str,
        split: TokenSplit,
    ) -> None:
        super().__init__()
        self.self_attn = MSAAttention(config, layer, shape, pools, quant_config, f"{prefix}.self_attn", split=split)
        self.is_sparse_moe = bool(config.moe_layer_freq[layer])
        reduces = not split.is_on  # else ``SplitForward`` brings the ranks' sums together
        # The checkpoint's names differ, so the attributes must.
        if self.is_sparse_moe:
            name = f"{prefix}.block_sparse_moe"
            self.block_sparse_moe = SparseMoE(config, quant_config, name, reduce_results=reduces)
        else:
            size, name = config.dense_intermediate_size, f"{prefix}.mlp"
            self.mlp = DenseMLP(config, size, quant_config, name, reduce_results=reduces)
        self.input_layernorm = GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, positions: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.self_attn(positions, self.input_layernorm(hidden))
        feed_forward = self.block_sparse_moe if self.is_sparse_moe else self.mlp
        return hidden + feed_forward(self.post_attention_layernorm(hidden))


class MSAModel(nn.Module):
    """Embedding, decoder layers, final norm, and the two cache pools that all layers share."""

    def __init__(self, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        config = vllm_config.model_config.hf_text_config
        quant_config = vllm_config.quant_config
        check_engine_config(vllm_config)
        parallel = vllm_config.parallel_config
        tp_size = get_tensor_model_parallel_world_size()
        shape = check_ranks(
            config, tp_size, parallel.data_parallel_size, has_whole_experts=parallel.enable_expert_parallel
        )
        split = split_settings(vllm_config.additional_config)
        split.check_ranks(tp_size, parallel.data_parallel_size)
        max_blocks = -(-vllm_config.model_config.max_model_len // BLOCK_SIZE)
        impl = MSAImpl(shape, max_blocks, torch.device(vllm_config.device_config.device_type))
        # vLLM wants exactly one number in a cache layer's name. The K/V pool comes first, as it begins the row.
        self.kv_pool = KVPool(f"{prefix}.kv_pool.0", shape, impl)
        self.index_pool = IndexPool(f"{prefix}.index_pool.0", shape, impl, self.kv_pool)
        pools = (self.kv_pool, self.index_pool)
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, prefix=f"{prefix}.embed_tokens"
        )
        self.layers = nn.ModuleList(
            DecoderLayer(config, layer, shape, pools, quant_config, f"{prefix}.layers.{layer}", split)
            for layer in range(config.num_hidden_layers)
        )
        self.norm = GemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        # Without its modules, which are this one's.
        self.split_forward = SplitForward(split, self.kv_pool.layer_name) if split.is_on else None

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.embed_tokens(input_ids)

    def forward(
        self, input_ids: torch.Tensor | None, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if self.split_forward is not None:
            return self.split_forward(self.layers, self.norm, positions, hidden)
        for layer in self.layers:
            hidden = layer(positions, hidden)
        return self.norm(hidden)


class MiniMaxM31FlashForCausalLM(nn.Module):
    """The model as vLLM runs it; tensor parallel, one pipeline stage."""

    packed_modules_mapping = {  # noqa: RUF012 - vLLM's class attribute
        "qkv_proj": ["q_proj", "k_proj", "v_proj", "index_q_proj", "index_k_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_text_config
        self.config = config
        self.model = MSAModel(vllm_config, maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "lm_head"))
        self.logits_processor = LogitsProcessor(config.vocab_size)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings [T, hidden_size] of ``input_ids`` int [T]."""
        return self.model.embed_input_ids(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states [T, hidden_size] after the final norm; ``intermediate_tensors`` belongs to pipelines."""
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits [T, vocab_size], on the rank that samples."""
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill every parameter from a checkpoint; ValueError if a name is unknown or missing."""
        # Not by vLLM's AutoWeightsLoader: where lm_head comes between others it asks for the rest in pieces, and nobody
        # could tell what is missing.
        return load_weights(self, self.config.num_local_experts, weights)

"""Sizes of the nano model, the forms in which it can be had, and its config.json."""

from dataclasses import dataclass
from typing import Any, Literal

NUM_LAYERS = 4
HIDDEN = 256
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 16, 4, 128
NUM_EXPERTS, TOP_K_EXPERTS = 8, 2
EXPERT_SIZE, DENSE_SIZE = 128, 512
TOPK_BLOCKS = 4
MOE_LAYER_FREQ = [0, 1, 1, 1]


@dataclass(frozen=True, kw_only=True)
class Form:
    """How the checkpoint is made up; the default is what deployments try things out with."""

    projections: Literal["plain", "mxfp8"] = "plain"
    """How all linear layers but the routed experts are stored: as ``dtype``, or in MXFP8 (fact M6)."""
    dense_layers: int = 0
    """First layers that have no index branch, as in M3's own pattern."""


DEFAULT_FORM = Form()


def nvfp4_quantization() -> dict[str, Any]:
    """ModelOpt's words for a checkpoint in which all is NVFP4 but what is named: the routed experts are left."""
    return {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "group_size": 16,
        "kv_cache_scheme": None,
        "ignore": ["lm_head", "*self_attn*", "*.mlp.*", "*shared_experts*", "*block_sparse_moe.gate"],
        "producer": {"name": "modelopt"},
    }


def mixed_quantization(dense_layers: int) -> dict[str, Any]:
    """ModelOpt's words for NVFP4 experts and MXFP8 projections: every layer by its name."""
    experts, others = {"quant_algo": "NVFP4", "group_size": 16}, {"quant_algo": "MXFP8", "group_size": 32}
    layers: dict[str, Any] = {}
    for layer, is_moe in enumerate(MOE_LAYER_FREQ):
        prefix = f"model.layers.{layer}"
        names = ("q", "k", "v", "index_q", "index_k", "o") if layer >= dense_layers else ("q", "k", "v", "o")
        layers |= {f"{prefix}.self_attn.{name}_proj": others for name in names}
        mlp = f"{prefix}.block_sparse_moe.shared_experts" if is_moe else f"{prefix}.mlp"
        layers |= {f"{mlp}.{name}_proj": others for name in ("gate", "up", "down")}
        if is_moe:
            layers[f"{prefix}.block_sparse_moe.experts"] = experts
    return {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": layers,
        "kv_cache_scheme": None,
        "ignore": ["lm_head", "*block_sparse_moe.gate"],
        "producer": {"name": "modelopt"},
    }


def model_config(dtype: str, vocab_size: int, form: Form = DEFAULT_FORM) -> dict[str, Any]:
    """config.json: upstream's M3 keys, and ModelOpt's quantization_config."""
    has_index = [0] * form.dense_layers + [1] * (NUM_LAYERS - form.dense_layers)
    return {
        "architectures": ["MiniMaxM31FlashForCausalLM"],
        "model_type": "minimax_m31_flash",
        "dtype": dtype,
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": EXPERT_SIZE,
        "dense_intermediate_size": DENSE_SIZE,
        "shared_intermediate_size": EXPERT_SIZE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 8192,
        "rotary_dim": 64,
        "partial_rotary_factor": 0.5,
        "rope_theta": 5_000_000,
        "num_local_experts": NUM_EXPERTS,
        "num_experts_per_tok": TOP_K_EXPERTS,
        "n_shared_experts": 1,
        "moe_layer_freq": MOE_LAYER_FREQ,
        "num_mtp_modules": 0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_index_dim": HEAD_DIM,
            "sparse_num_index_heads": NUM_KV_HEADS,
            "sparse_topk_blocks": TOPK_BLOCKS,
            "sparse_block_size": 128,
            "sparse_score_type": "max",
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            "sparse_attention_freq": has_index,
            "sparse_disable_index_value": has_index,
        },
        "quantization_config": (
            mixed_quantization(form.dense_layers) if form.projections == "mxfp8" else nvfp4_quantization()
        ),
    }

"""MiniMax-M3.1-Flash as it was published (facts M1, M2): the value of every key that a config.json leaves out.

Pure: the checkpoint preflight reads it without an engine.
"""

from types import SimpleNamespace
from typing import Any

NUM_LAYERS = 60
MODEL_TYPE = "minimax_m31_flash"
ARCHITECTURE = "MiniMaxM31FlashForCausalLM"


def published_values() -> dict[str, Any]:
    """A fresh copy of the published configuration, in upstream's M3 keys."""
    return {
        "vocab_size": 200_064,
        "hidden_size": 6144,
        "intermediate_size": 3072,
        "dense_intermediate_size": 12_288,
        "shared_intermediate_size": 3072,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 524_288,
        "rms_norm_eps": 1e-6,
        "use_gemma_norm": True,
        "attention_output_gate": False,
        "rope_theta": 5_000_000,
        "rotary_dim": 64,
        "partial_rotary_factor": 0.5,
        "hidden_act": "swigluoai",
        "swiglu_alpha": 1.702,
        "swiglu_beta": 1.0,
        "swiglu_limit": 7.0,
        "use_qk_norm": True,
        "qk_norm_type": "per_head",
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "routed_scaling_factor": 2.0,
        # The drafter is a model of its own (fact M8).
        "num_mtp_modules": 0,
        "moe_layer_freq": [0] * 3 + [1] * (NUM_LAYERS - 3),
        "tie_word_embeddings": False,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_index_dim": 128,
            "sparse_num_index_heads": 4,
            "sparse_topk_blocks": 16,
            "sparse_block_size": 128,
            "sparse_score_type": "max",
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            # Not M3's pattern, which leaves the first three layers dense.
            "sparse_attention_freq": [1] * NUM_LAYERS,
            "sparse_disable_index_value": [1] * NUM_LAYERS,
        },
    }


def published_quantization() -> dict[str, Any]:
    """``quantization_config`` of a checkpoint of fact M6: routed experts NVFP4, other projections MXFP8.

    In ModelOpt's words for a checkpoint of mixed precision. Its ``quantized_layers`` name modules or patterns of them.
    """
    mxfp8 = {"quant_algo": "MXFP8", "group_size": 32}
    return {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            "model.layers.*.block_sparse_moe.experts.*": {"quant_algo": "NVFP4", "group_size": 16},
            "model.layers.*.block_sparse_moe.shared_experts.*": mxfp8,
            "model.layers.*.self_attn.*_proj": mxfp8,
            "model.layers.*.mlp.*": mxfp8,
        },
        "ignore": ["lm_head", "model.embed_tokens", "*block_sparse_moe.gate"],
    }


def with_defaults(values: dict[str, Any]) -> SimpleNamespace:
    """A config.json's ``values`` with the published ones for what it leaves out, as attributes."""
    return SimpleNamespace(**(published_values() | values))

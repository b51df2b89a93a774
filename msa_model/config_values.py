"""Kind and range of each value of a config.json, checked before anything is computed from it. Pure.

The bounds are far beyond any model of this kind; what lies outside is a slip that would end in wrong tokens, in a crash
after the weights were loaded, or in a list of names that never ends.
"""

from typing import Any, TypeGuard

from msa_model.checkpoint_tensors import STORED
from msa_model.refusals import is_whole, refuse, require

# From and to, both allowed.
WHOLE: dict[str, tuple[int, int]] = {
    "num_hidden_layers": (1, 1000),
    "hidden_size": (1, 1 << 17),
    "intermediate_size": (1, 1 << 20),
    "dense_intermediate_size": (1, 1 << 20),
    "num_attention_heads": (1, 1024),
    "num_key_value_heads": (1, 1024),
    "vocab_size": (1, 1 << 24),
    "max_position_embeddings": (1, 1 << 24),
    "rotary_dim": (2, 128),
    "num_local_experts": (1, 1024),
    "n_shared_experts": (0, 64),
}
NUMBERS: dict[str, tuple[float, float]] = {
    "rms_norm_eps": (1e-12, 1.0),
    "rope_theta": (1.0, 1e12),
    "partial_rotary_factor": (1 / 64, 1.0),
    "swiglu_limit": (1e-3, 1e6),
    "swiglu_alpha": (1e-3, 1e3),
    "swiglu_beta": (-1e3, 1e3),
    "routed_scaling_factor": (1e-3, 1e3),
}
# What this package computes, and nothing else.
FLAGS = {
    "use_qk_norm": True,
    "use_routing_bias": True,
    "use_gemma_norm": True,
    "attention_output_gate": False,
    "tie_word_embeddings": False,
}
WORDS = {"scoring_func": "sigmoid", "hidden_act": "swigluoai", "qk_norm_type": "per_head"}
# Nine times as many as published; each is twelve names of a checkpoint.
MAX_ROUTED_EXPERTS = 1 << 16
MAX_TOPK_BLOCKS = 4096


def check_values(config: Any) -> None:
    """Raise ValueError, naming the key, for a value of the wrong kind or beyond its bounds."""
    for key, (least, most) in WHOLE.items():
        check_whole(key, getattr(config, key, None), least, most)
    for key, (low, high) in NUMBERS.items():
        value: Any = getattr(config, key, None)
        is_number = is_whole(value) or isinstance(value, float)
        require(is_number and low <= value <= high, key, value, f"a number from {low:g} to {high:g}")
    for key, wanted in FLAGS.items():
        value = getattr(config, key, None)
        require(value is wanted, key, value, "true" if wanted else "false")
    for key, word in WORDS.items():
        require(getattr(config, key, None) == word, key, getattr(config, key, None), repr(word))
    layers, experts = config.num_hidden_layers, config.num_local_experts
    freq = config.moe_layer_freq
    require(is_pattern(freq, layers), "moe_layer_freq", freq, f"a list of num_hidden_layers={layers} times 0 or 1")
    most = MAX_ROUTED_EXPERTS // max(1, sum(freq))
    check_whole("num_local_experts", experts, 1, most, f" on {sum(freq)} layers")
    check_whole("num_experts_per_tok", config.num_experts_per_tok, 1, experts, " (num_local_experts)")
    for key in ("bos_token_id", "eos_token_id"):
        given = getattr(config, key, None)
        ids = given if isinstance(given, list) else [] if given is None else [given]
        are_tokens = all(is_whole(token) and 0 <= token < config.vocab_size for token in ids)
        require(are_tokens, key, given, f"null, or whole numbers from 0 to vocab_size - 1 = {config.vocab_size - 1}")
    for key in ("dtype", "torch_dtype"):
        # transformers makes a torch.dtype of it.
        dtype = getattr(config, key, None)
        name = str(dtype).removeprefix("torch.")
        require(dtype is None or name in STORED, key, name, f"one of {', '.join(sorted(STORED))}")


def check_sparse_values(sparse: Any, num_layers: int) -> None:
    """The same of ``sparse_attention_config``, of ``num_layers`` layers."""
    section = "sparse_attention_config"
    if not isinstance(sparse, dict):
        refuse(section, sparse, "an object")
    for key in ("sparse_block_size", "sparse_index_dim", "sparse_num_index_heads", "sparse_local_block"):
        value = sparse.get(key)
        require(is_whole(value), f"{section}.{key}", value, "a whole number")
    check_whole(f"{section}.sparse_topk_blocks", sparse.get("sparse_topk_blocks"), 1, MAX_TOPK_BLOCKS)
    uses = sparse.get("use_sparse_attention", True)
    require(uses is True, f"{section}.use_sparse_attention", uses, "true")
    for key in ("sparse_attention_freq", "sparse_disable_index_value"):
        value = sparse.get(key)
        is_right = value is None or is_pattern(value, num_layers)
        require(is_right, f"{section}.{key}", value, f"a list of num_hidden_layers={num_layers} times 0 or 1")


def check_whole(key: str, value: object, least: int, most: int, why: str = "") -> None:
    """Raise ValueError, naming ``key``, unless ``value`` is a whole number of that range; ``why`` ends the message."""
    is_right = is_whole(value) and least <= value <= most
    require(is_right, key, value, f"a whole number from {least} to {most}{why}")


def is_pattern(value: object, num_layers: int) -> TypeGuard[list[int]]:
    """Whether it is a list that says 0 or 1 of each layer."""
    return (
        isinstance(value, list) and len(value) == num_layers and all(is_whole(one) and 0 <= one <= 1 for one in value)
    )

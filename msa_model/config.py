"""Model configuration, its validation, and the sizes of one tensor-parallel rank.

Owns every start-up refusal: a configuration that this model can't serve right stops here with the name of its key.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.transformers_utils.configs.minimax_m3 import MiniMaxM3TextConfig

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# Facts M2 and M4: selection, paging and the NVFP4 slot layout all assume these.
BLOCK_SIZE = 128
HEAD_DIM = 128
NVFP4_GROUP = 16
KV_CACHE_DTYPES = ("auto", "nvfp4")


class MiniMaxM31FlashConfig(MiniMaxM3TextConfig):
    """Text backbone of MiniMax-M3.1-Flash: M3's schema, index branch on every layer."""

    model_type = "minimax_m31_flash"
    architectures = ["MiniMaxM31FlashForCausalLM"]  # noqa: RUF012 - transformers reads a plain class attribute

    # transformers 5 gives a subclass without __init__ a generated one that skips the parent's.
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


@dataclass(frozen=True, kw_only=True)
class MSAShape:
    """Sizes of the attention on one rank; heads are counted per rank."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    """KV heads, and index queries: there is one per KV head."""
    topk_blocks: int
    local_blocks: int
    """Newest blocks that are always kept."""

    @classmethod
    def from_config(cls, config: Any, tp_size: int) -> "MSAShape":
        """Shape of one of ``tp_size`` ranks; beyond the number of KV heads, each is replicated over neighbours.

        Raises ValueError, naming the key, for anything that this model can't serve right.
        """
        check_model_config(config)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        _require(heads % tp_size == 0, "tensor_parallel_size", tp_size, f"a divisor of num_attention_heads={heads}")
        _require(
            kv_heads % tp_size == 0 or tp_size % kv_heads == 0,
            "tensor_parallel_size",
            tp_size,
            f"a divisor or a multiple of num_key_value_heads={kv_heads}",
        )
        sparse = config.sparse_attention_config
        return cls(
            num_layers=config.num_hidden_layers,
            num_heads=heads // tp_size,
            num_kv_heads=max(1, kv_heads // tp_size),
            topk_blocks=sparse["sparse_topk_blocks"],
            local_blocks=sparse["sparse_local_block"],
        )


def _require(holds: bool, key: str, value: object, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{key}={value!r} can't be served: it must be {wanted}")


def check_model_config(config: Any) -> None:
    """Raise ValueError, naming the key, unless ``config`` describes a model that this package computes right."""
    kv_heads, layers = config.num_key_value_heads, config.num_hidden_layers
    _require(config.head_dim == HEAD_DIM, "head_dim", config.head_dim, str(HEAD_DIM))
    _require(
        config.num_attention_heads % kv_heads == 0, "num_key_value_heads", kv_heads, "a divisor of num_attention_heads"
    )
    _require(len(config.moe_layer_freq) == layers, "moe_layer_freq", config.moe_layer_freq, f"a list of {layers}")
    _require(config.scoring_func == "sigmoid", "scoring_func", config.scoring_func, "'sigmoid'")
    _require(config.hidden_act == "swigluoai", "hidden_act", config.hidden_act, "'swigluoai'")
    _require(config.qk_norm_type == "per_head", "qk_norm_type", config.qk_norm_type, "'per_head'")
    _require(config.use_routing_bias, "use_routing_bias", config.use_routing_bias, "true")
    _require(config.use_gemma_norm, "use_gemma_norm", config.use_gemma_norm, "true")
    _require(not config.attention_output_gate, "attention_output_gate", config.attention_output_gate, "false")
    _require(not config.tie_word_embeddings, "tie_word_embeddings", config.tie_word_embeddings, "false")
    _check_sparse(config.sparse_attention_config, kv_heads, layers)
    if any(config.moe_layer_freq):
        _check_quantization(getattr(config, "quantization_config", None))


def _check_sparse(sparse: dict[str, Any], kv_heads: int, num_layers: int) -> None:
    topk, local = sparse["sparse_topk_blocks"], sparse["sparse_local_block"]
    every = [1] * num_layers
    wanted: list[tuple[str, bool, str]] = [
        ("sparse_block_size", sparse["sparse_block_size"] == BLOCK_SIZE, str(BLOCK_SIZE)),
        ("sparse_index_dim", sparse["sparse_index_dim"] == HEAD_DIM, f"head_dim={HEAD_DIM}"),
        (
            "sparse_num_index_heads",
            sparse["sparse_num_index_heads"] == kv_heads,
            f"num_key_value_heads={kv_heads} (one index query per group)",
        ),
        ("sparse_score_type", sparse.get("sparse_score_type", "max") == "max", "'max'"),
        ("sparse_init_block", sparse.get("sparse_init_block", 0) == 0, "0"),
        ("sparse_local_block", 1 <= local <= topk, "between 1 and sparse_topk_blocks: the newest block is always kept"),
        ("sparse_attention_freq", sparse.get("sparse_attention_freq", every) == every, "1 on every layer"),
        ("sparse_disable_index_value", sparse.get("sparse_disable_index_value", every) == every, "1 on every layer"),
    ]
    for key, holds, text in wanted:
        _require(holds, f"sparse_attention_config.{key}", sparse.get(key), text)


def _check_quantization(quantization: dict[str, Any] | None) -> None:
    _require(quantization is not None, "quantization_config", None, "given: routed experts are ModelOpt NVFP4")
    assert quantization is not None
    settings = quantization.get("quantization", quantization)
    algo, group = settings.get("quant_algo"), settings.get("group_size", NVFP4_GROUP)
    _require(algo == "NVFP4", "quantization_config.quant_algo", algo, "'NVFP4'")
    _require(group == NVFP4_GROUP, "quantization_config.group_size", group, str(NVFP4_GROUP))


def check_engine_config(vllm_config: "VllmConfig") -> None:
    """Raise ValueError, naming the key, for engine settings under which this model would be wrong.

    The block size is checked by ``check_block_size``, as vLLM settles it later than the model is built.
    """
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    pp, dcp = parallel.pipeline_parallel_size, parallel.decode_context_parallel_size
    _require(pp == 1, "pipeline_parallel_size", pp, "1: a KV row holds the pages of all layers")
    _require(dcp == 1, "decode_context_parallel_size", dcp, "1")
    experts = parallel.enable_expert_parallel
    _require(not experts, "enable_expert_parallel", experts, "false")
    _require(cache.cache_dtype in KV_CACHE_DTYPES, "kv_cache_dtype", cache.cache_dtype, f"one of {KV_CACHE_DTYPES}")
    index_dtype = vllm_config.attention_config.indexer_kv_dtype
    _require(
        index_dtype in KV_CACHE_DTYPES,
        "attention_config.indexer_kv_dtype",
        index_dtype,
        f"one of {KV_CACHE_DTYPES}",
    )


def check_block_size(block_size: int) -> None:
    """Raise ValueError unless a cache block is one selection block of 128 tokens."""
    _require(block_size == BLOCK_SIZE, "block_size", block_size, f"{BLOCK_SIZE}, the block that the indexer selects")

"""Validation of a model and its engine's settings, and the sizes of one tensor-parallel rank.

Owns every start-up refusal: a configuration that this model can't serve right stops here with the name of its key.
Imports no engine, so that a checkpoint can be checked before one is built.
"""

from dataclasses import dataclass
from typing import Any

from msa_model.checkpoint_tensors import index_layers, projections, routed_experts
from msa_model.config_values import check_sparse_values, check_values
from msa_model.quant_scheme import GROUP_SIZE, QuantScheme
from msa_model.refusals import is_whole, refuse, require

# Facts M2 and M4: selection, paging and the NVFP4 slot layout all assume these.
BLOCK_SIZE = 128
HEAD_DIM = 128
KV_CACHE_DTYPES = ("auto", "nvfp4")


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
    dense_layers: frozenset[int] = frozenset()
    """Layers without an index branch, which attend to the whole context: none in M3.1, the first three in M3."""

    @classmethod
    def from_config(cls, config: Any, tp_size: int) -> "MSAShape":
        """Shape of one of ``tp_size`` ranks; beyond the number of KV heads, each is replicated over neighbours.

        Raises ValueError, naming the key, for anything that this model can't serve right.
        """
        check_model_config(config)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        require(heads % tp_size == 0, "tensor_parallel_size", tp_size, f"a divisor of num_attention_heads={heads}")
        require(
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
            dense_layers=frozenset(range(config.num_hidden_layers)) - frozenset(index_layers(config)),
        )

    @property
    def num_index_layers(self) -> int:
        """Layers with an index branch, and slots of the index pool."""
        return self.num_layers - len(self.dense_layers)

    def index_slot(self, layer: int) -> int:
        """Slot of a layer's index keys in the index pool, which has none for dense layers."""
        assert layer not in self.dense_layers, "a dense layer has no index keys"
        return layer - sum(dense < layer for dense in self.dense_layers)


def check_model_config(config: Any) -> None:
    """Raise ValueError, naming the key, unless ``config`` describes a model that this package computes right."""
    check_values(config)
    head_dim, kv_heads, layers = config.head_dim, config.num_key_value_heads, config.num_hidden_layers
    require(is_whole(head_dim) and head_dim == HEAD_DIM, "head_dim", head_dim, str(HEAD_DIM))
    require(
        config.num_attention_heads % kv_heads == 0, "num_key_value_heads", kv_heads, "a divisor of num_attention_heads"
    )
    _check_rope(config)
    check_sparse_values(config.sparse_attention_config, layers)
    _check_sparse(config.sparse_attention_config, kv_heads, layers)
    _check_quantization(config)


def _check_rope(config: Any) -> None:
    """Plain rotation by ``rope_theta``; other places where a configuration may speak of it must say the same."""
    rotary_dim, wanted = config.rotary_dim, config.head_dim * config.partial_rotary_factor
    require(rotary_dim == wanted, "rotary_dim", rotary_dim, f"head_dim * partial_rotary_factor = {wanted:g}")
    for name in ("rope_parameters", "rope_scaling"):
        rope = getattr(config, name, None) or {}
        if not isinstance(rope, dict):
            refuse(name, rope, "an object")
        kind = rope.get("rope_type", rope.get("type", "default"))
        require(kind == "default", f"{name}.rope_type", kind, "'default'")
        for key in ("rope_theta", "partial_rotary_factor"):
            mine, given = getattr(config, key), rope.get(key)
            require(given is None or given == mine, f"{name}.{key}", given, f"{key}={mine}")


def _check_sparse(sparse: dict[str, Any], kv_heads: int, num_layers: int) -> None:
    topk, local = sparse["sparse_topk_blocks"], sparse["sparse_local_block"]
    every = [1] * num_layers
    freq = sparse.get("sparse_attention_freq") or every
    disabled = sparse.get("sparse_disable_index_value") or every
    has_no_values = all(is_disabled for is_disabled, has_index in zip(disabled, freq, strict=True) if has_index)
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
        ("sparse_attention_freq", any(freq), "1 for a layer at least"),
        ("sparse_disable_index_value", has_no_values, "1 on every layer that has an index branch"),
    ]
    for key, holds, text in wanted:
        require(holds, f"sparse_attention_config.{key}", sparse.get(key), text)


def _check_quantization(config: Any) -> None:
    """Routed experts NVFP4, the projections of one fused layer alike and never NVFP4, routers and head plain."""
    scheme = QuantScheme.of(config)
    key = "quantization_config"
    if scheme is None:
        require(not any(config.moe_layer_freq), key, None, "given: routed experts are ModelOpt NVFP4")
        return
    formats: dict[str, str | None] = {}
    for linear in projections(config):
        stored = scheme.format_of(linear.module)
        require(stored != "NVFP4", f"{key}: {linear.module}", stored, "MXFP8 or not quantised (name it in `ignore`)")
        first = formats.setdefault(linear.group, stored)
        require(stored == first, f"{key}: {linear.module}", stored, f"{first}, like its neighbours in one projection")
        _check_groups(linear.module, linear.inputs, stored)
    for linear in routed_experts(config):
        stored = scheme.format_of(linear.module)
        require(stored == "NVFP4", f"{key}: {linear.module}", stored, "NVFP4")
        _check_groups(linear.module, linear.inputs, stored)
    stored = scheme.format_of("lm_head")
    require(stored is None, f"{key}: lm_head", stored, "not quantised (name it in `ignore`)")


def _check_groups(module: str, inputs: int, stored: str | None) -> None:
    if stored is not None:
        group = GROUP_SIZE[stored]
        require(
            inputs % group == 0,
            f"inputs of {module}",
            inputs,
            f"a multiple of {group}, which share a scale (hidden_size and others)",
        )


def check_engine_config(vllm_config: Any) -> None:
    """Raise ValueError, naming the key, for engine settings under which this model would be wrong.

    ``vllm_config``: vLLM's VllmConfig. The block size is checked by ``check_block_size``, as vLLM settles it later
    than the model is built.
    """
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    pp, dcp, dp = (
        parallel.pipeline_parallel_size,
        parallel.decode_context_parallel_size,
        parallel.data_parallel_size,
    )
    require(pp == 1, "pipeline_parallel_size", pp, "1: a KV row holds the pages of all layers")
    require(dcp == 1, "decode_context_parallel_size", dcp, "1")
    if vllm_config.kv_transfer_config is not None:
        require(dp == 1, "data_parallel_size", dp, "1 with a KV connector, which has one side channel an engine")
    require(not parallel.enable_eplb, "enable_eplb", parallel.enable_eplb, "false: experts stay where they were put")
    check_cache_dtype(cache.cache_dtype)
    check_cache_dtype(vllm_config.attention_config.indexer_kv_dtype, "attention_config.indexer_kv_dtype")


def check_ranks(config: Any, tp_size: int, dp_size: int, *, has_whole_experts: bool) -> MSAShape:
    """Shape of a rank of ``tp_size``, in each of ``dp_size`` replicas; ``has_whole_experts``: expert parallelism.

    Raises ValueError, naming the key, for a model or a number of ranks that can't be served right.
    """
    shape = MSAShape.from_config(config, tp_size)
    # vLLM cuts experts over all replicas' ranks, unless each rank has whole ones.
    check_cuts(config, tp_size, 1 if has_whole_experts else tp_size * dp_size)
    return shape


def check_cuts(config: Any, tp_size: int, moe_tp_size: int) -> None:
    """Raise ValueError, naming the key, if the feed-forward layers can't be cut over the ranks.

    ``tp_size`` ranks share each dense layer, ``moe_tp_size`` each routed expert (1 under expert parallelism). A cut
    must not go through a group of values that share a scale.
    """
    scheme = QuantScheme.of(config)
    cuts = {
        linear.module: (linear.inputs, scheme.format_of(linear.module) if scheme else None, tp_size)
        for linear in projections(config)
        if linear.module.endswith("down_proj")
    }
    first = next(routed_experts(config), None)
    if first is not None:
        cuts[first.module] = (config.intermediate_size, "NVFP4", moe_tp_size)
    for module, (size, stored, ranks) in cuts.items():
        group = GROUP_SIZE[stored] if stored else 1
        wanted = f"so that {size} inputs of {module} are cut between groups of {group}"
        require(size % (ranks * group) == 0, "ranks of tensor parallelism", ranks, wanted)


def check_cache_dtype(dtype: str, key: str = "kv_cache_dtype") -> None:
    """Raise ValueError, naming the key, unless a cache is of the format that the model was trained with (fact M4)."""
    require(dtype in KV_CACHE_DTYPES, key, dtype, f"one of {KV_CACHE_DTYPES}")


def check_block_size(block_size: int) -> None:
    """Raise ValueError unless a cache block is one selection block of 128 tokens."""
    require(block_size == BLOCK_SIZE, "block_size", block_size, f"{BLOCK_SIZE}, the block that the indexer selects")

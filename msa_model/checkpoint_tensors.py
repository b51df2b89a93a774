"""The one list of what a checkpoint must hold: name, shape and stored number format of every tensor. Pure.

Names are those that upstream's M3 loader expects, formats those of ModelOpt (fact M6)::

    plain     {module}.weight          [O, I]     float
    MXFP8     {module}.weight          [O, I]     E4M3
              {module}.weight_scale    [O, I/32]  E8M0, as bytes
    NVFP4     {module}.weight          [O, I/2]   bytes of two E2M1
              {module}.weight_scale    [O, I/16]  E4M3
              {module}.weight_scale_2  []         float32, multiplies the scales
              {module}.input_scale     []         float32, of the activations
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from msa_model.quant_scheme import MXFP8_GROUP, NVFP4_GROUP, Format, QuantScheme

# Spellings of a safetensors header.
FLOATS = ("BF16", "F16", "F32")
BYTES, E4M3, FLOAT32 = ("U8",), ("F8_E4M3",), ("F32",)
E8M0 = ("U8", "F8_E8M0")
DTYPE_BYTES = {"U8": 1, "F8_E4M3": 1, "F8_E8M0": 1, "BF16": 2, "F16": 2, "F32": 4}
STORED = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True, slots=True)
class Linear:
    """A projection of the checkpoint, ``outputs`` x ``inputs``; vLLM fuses those of one ``group`` into one layer."""

    module: str
    outputs: int
    inputs: int
    group: str
    kind: str


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """A tensor that must be there. ``dtypes``: what it may be stored as, the usual one first."""

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    kind: str
    """Kind of module, for sums."""
    num_parameters: int
    """Weights of the model that it holds; scales hold none."""

    @property
    def num_bytes(self) -> int:
        """In the usual number format."""
        return prod(self.shape) * DTYPE_BYTES[self.dtypes[0]]


def index_layers(config: Any) -> list[int]:
    """Layers with an index branch, all of them where the configuration doesn't say."""
    freq = config.sparse_attention_config.get("sparse_attention_freq")
    layers = range(config.num_hidden_layers)
    return list(layers) if freq is None else [layer for layer in layers if freq[layer]]


def projections(config: Any) -> Iterator[Linear]:
    """Every linear module that may be quantised but the routed experts."""
    dim, hidden = config.head_dim, config.hidden_size
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
    index_heads = {"index_q": config.sparse_attention_config["sparse_num_index_heads"], "index_k": 1}
    with_index = set(index_layers(config))
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        attention = f"{prefix}.self_attn"
        for name, count in (heads | index_heads if layer in with_index else heads).items():
            yield Linear(f"{attention}.{name}_proj", count * dim, hidden, f"{attention}.qkv_proj", "attention")
        o_proj = f"{attention}.o_proj"
        yield Linear(o_proj, hidden, config.num_attention_heads * dim, o_proj, "attention")
        if not config.moe_layer_freq[layer]:
            yield from _mlp(f"{prefix}.mlp", hidden, config.dense_intermediate_size, "dense MLP")
        elif config.n_shared_experts:
            size = config.intermediate_size * config.n_shared_experts
            yield from _mlp(f"{prefix}.block_sparse_moe.shared_experts", hidden, size, "shared experts")


def _mlp(prefix: str, hidden: int, size: int, kind: str) -> Iterator[Linear]:
    for name in ("gate_proj", "up_proj"):
        yield Linear(f"{prefix}.{name}", size, hidden, f"{prefix}.gate_up_proj", kind)
    yield Linear(f"{prefix}.down_proj", hidden, size, f"{prefix}.down_proj", kind)


def routed_experts(config: Any) -> Iterator[Linear]:
    """w1 (gate), w3 (up) and w2 (down) of every routed expert."""
    hidden, size, kind = config.hidden_size, config.intermediate_size, "routed experts"
    for layer in moe_layers(config):
        group = f"model.layers.{layer}.block_sparse_moe.experts"
        for expert in range(config.num_local_experts):
            for name in ("w1", "w3"):
                yield Linear(f"{group}.{expert}.{name}", size, hidden, group, kind)
            yield Linear(f"{group}.{expert}.w2", hidden, size, group, kind)


def moe_layers(config: Any) -> list[int]:
    """Layers with routed experts."""
    return [layer for layer in range(config.num_hidden_layers) if config.moe_layer_freq[layer]]


def expected_tensors(config: Any) -> dict[str, ExpectedTensor]:
    """Every tensor of a checkpoint of ``config`` (checked by ``check_model_config``), by name."""
    scheme = QuantScheme.of(config)
    tensors = list(_plain(config))
    for linear in (*projections(config), *routed_experts(config)):
        tensors += _linear(linear, scheme.format_of(linear.module) if scheme else None, _float_dtypes(config))
    return {tensor.name: tensor for tensor in tensors}


def _float_dtypes(config: Any) -> tuple[str, ...]:
    """Whatever floats there are will do; the configuration says which are usual."""
    # transformers makes a torch.dtype of it, and older files call it torch_dtype.
    dtype = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or "bfloat16"
    usual = STORED.get(str(dtype).removeprefix("torch."), "BF16")
    return (usual, *(other for other in FLOATS if other != usual))


def _linear(linear: Linear, number_format: Format | None, floats: tuple[str, ...]) -> Iterator[ExpectedTensor]:
    outputs, inputs, count = linear.outputs, linear.inputs, linear.outputs * linear.inputs

    def tensor(suffix: str, shape: tuple[int, ...], dtypes: tuple[str, ...], parameters: int = 0) -> ExpectedTensor:
        return ExpectedTensor(f"{linear.module}.{suffix}", shape, dtypes, linear.kind, parameters)

    if number_format is None:
        yield tensor("weight", (outputs, inputs), floats, count)
    elif number_format == "MXFP8":
        yield tensor("weight", (outputs, inputs), E4M3, count)
        yield tensor("weight_scale", (outputs, inputs // MXFP8_GROUP), E8M0)
    else:
        yield tensor("weight", (outputs, inputs // 2), BYTES, count)
        yield tensor("weight_scale", (outputs, inputs // NVFP4_GROUP), E4M3)
        yield tensor("weight_scale_2", (), FLOAT32)
        yield tensor("input_scale", (), FLOAT32)


def _plain(config: Any) -> Iterator[ExpectedTensor]:
    """Embedding, head, norms and routers, which are never quantised."""
    hidden, floats = config.hidden_size, _float_dtypes(config)

    def tensor(name: str, *shape: int, kind: str, dtypes: tuple[str, ...] = floats) -> ExpectedTensor:
        return ExpectedTensor(name, shape, dtypes, kind, prod(shape))

    yield tensor("model.embed_tokens.weight", config.vocab_size, hidden, kind="embedding")
    yield tensor("lm_head.weight", config.vocab_size, hidden, kind="head")
    yield tensor("model.norm.weight", hidden, kind="norms")
    with_index, with_experts = set(index_layers(config)), set(moe_layers(config))
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield tensor(f"{prefix}.{name}.weight", hidden, kind="norms")
        for name in ("q_norm", "k_norm", *(("index_q_norm", "index_k_norm") if layer in with_index else ())):
            yield tensor(f"{prefix}.self_attn.{name}.weight", config.head_dim, kind="norms")
        if layer in with_experts:
            moe, routers = f"{prefix}.block_sparse_moe", ("F32", "BF16", "F16")
            experts = config.num_local_experts
            yield tensor(f"{moe}.gate.weight", experts, hidden, kind="routers", dtypes=routers)
            yield tensor(f"{moe}.e_score_correction_bias", experts, kind="routers", dtypes=routers)

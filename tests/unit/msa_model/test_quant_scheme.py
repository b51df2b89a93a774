"""Which format a module is stored in follows from ModelOpt's words; what can't be understood is refused by key."""

from types import SimpleNamespace
from typing import Any

import pytest

from msa_model.published import published_quantization
from msa_model.quant_scheme import QuantScheme

LAYER = "model.layers.7"
MODELOPT: dict[str, Any] = {"quant_method": "modelopt"}
MIXED = {"quant_algo": "MIXED_PRECISION"}


def mixed(layers: dict[str, Any], **more: Any) -> QuantScheme:
    return QuantScheme(MODELOPT | {"quant_algo": "mixed_precision", "quantized_layers": layers} | more)


def test_nvfp4_is_all_that_is_not_named() -> None:
    scheme = QuantScheme(MODELOPT | {"quant_algo": "NVFP4", "ignore": ["lm_head", "*self_attn*", f"{LAYER}.mlp"]})
    formats = [scheme.format_of(f"{LAYER}.{name}") for name in ("mlp.up_proj", "self_attn.o_proj", "mlp2.up_proj")]
    assert formats == [None, None, "NVFP4"]
    assert scheme.format_of("lm_head") is None


def test_a_layer_may_be_named_itself_by_its_parent_or_by_a_pattern() -> None:
    scheme = mixed(
        {
            f"{LAYER}.self_attn.q_proj": {"quant_algo": "MXFP8"},
            f"{LAYER}.experts": {"quant_algo": "nvfp4", "group_size": 16},
            "*.mlp.*": {"quant_algo": "MXFP8", "group_size": 32},
        }
    )
    assert scheme.format_of(f"{LAYER}.self_attn.q_proj") == "MXFP8"
    assert scheme.format_of(f"{LAYER}.self_attn.k_proj") is None
    assert scheme.format_of(f"{LAYER}.experts.3.w1") == "NVFP4"
    assert scheme.format_of("model.layers.0.mlp.up_proj") == "MXFP8"


def test_the_exact_name_counts_more_than_a_pattern_and_ignored_most() -> None:
    layers = {"*": {"quant_algo": "NVFP4"}, "a.b": {"quant_algo": "MXFP8"}}
    assert mixed(layers).format_of("a.b") == "MXFP8"
    assert mixed(layers, ignore=["a.*"]).format_of("a.b") is None
    assert mixed(layers, exclude_modules=["a"]).format_of("a.b") is None


def test_a_name_is_no_prefix_of_another() -> None:
    assert mixed({"model.layers.1": {"quant_algo": "MXFP8"}}).format_of("model.layers.11.o_proj") is None


@pytest.mark.parametrize(
    ("settings", "cache"),
    [
        ({}, ("", "")),
        ({"kv_cache_scheme": None, "kv_cache_quant_algo": "fp8"}, ("quantization_config.kv_cache_quant_algo", "FP8")),
        (
            {"kv_cache_scheme": {"type": "float", "num_bits": 8, "dynamic": False}},
            ("quantization_config.kv_cache_scheme", "FP8"),
        ),
        ({"kv_cache_scheme": {"num_bits": [8]}}, ("", "")),
        (
            {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}},
            ("quantization_config.quantization.kv_cache_quant_algo", "FP8"),
        ),
    ],
)
def test_the_format_of_the_cache_is_told_with_its_key(settings: dict[str, Any], cache: tuple[str, str]) -> None:
    assert QuantScheme(MODELOPT | {"quant_algo": "NVFP4"} | settings).cache == cache


def test_settings_may_lie_one_level_deeper() -> None:
    inner = {"quant_algo": "NVFP4", "exclude_modules": ["a"]}
    scheme = QuantScheme({"producer": {"name": "modelopt"}, "quantization": inner})
    assert (scheme.format_of("a"), scheme.format_of("b")) == (None, "NVFP4")


def test_a_model_without_quantisation_has_no_scheme() -> None:
    assert QuantScheme.of(SimpleNamespace()) is None
    assert QuantScheme.of(SimpleNamespace(quantization_config=None)) is None


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, r"quantization_config\.quant_algo=None"),
        ({"quant_algo": 4}, r"quantization_config\.quant_algo=4"),
        ({"quant_algo": "FP8"}, r"quant_algo='FP8'"),
        ({"quant_algo": "NVFP4", "group_size": 32}, r"quantization_config\.group_size=32"),
        ({"quant_algo": "NVFP4", "group_size": "abc"}, r"quantization_config\.group_size='abc'"),
        ({"quant_algo": "NVFP4", "group_size": [16]}, r"quantization_config\.group_size=\[16\]"),
        ({"quant_algo": "NVFP4", "ignore": "lm_head"}, r"quantization_config\.ignore='lm_head'"),
        ({"quant_algo": "NVFP4", "exclude_modules": [1]}, r"quantization_config\.exclude_modules=\[1\]"),
        (MIXED, r"quantization_config\.quantized_layers=None"),
        (MIXED | {"quantized_layers": ["a"]}, r"quantization_config\.quantized_layers=\['a'\]"),
        (MIXED | {"quantized_layers": {"a": "NVFP4"}}, r"quantized_layers\['a'\]='NVFP4'"),
        (MIXED | {"quantized_layers": {"a": {"quant_algo": "W4A8"}}}, r"\['a'\]\.quant_algo='W4A8'"),
        (MIXED | {"quantized_layers": {"a": {}}}, r"\['a'\]\.quant_algo=None"),
        (MIXED | {"quantized_layers": {"a": {"quant_algo": "MXFP8", "group_size": 16}}}, r"\['a'\]\.group_size=16"),
        ({"quantization": []}, r"quantization_config\.quantization=\[\]"),
        ({"quantization": {"quant_algo": 4}}, r"quantization_config\.quantization\.quant_algo=4"),
        ({"producer": ["modelopt"], "quant_algo": "NVFP4"}, r"quantization_config\.producer="),
        (
            {"quant_method": "compressed-tensors", "quant_algo": "NVFP4"},
            r"quant_method='compressed-tensors' .*modelopt",
        ),
        ({"quant_method": None, "quant_algo": "NVFP4"}, r"quant_method=None"),
        ({"quant_method": 4, "quant_algo": "NVFP4"}, r"quant_method=4"),
    ],
)
def test_what_is_not_understood_is_refused_by_key(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        QuantScheme(MODELOPT | settings)


@pytest.mark.parametrize("quantization", [[], "modelopt", 4])
def test_a_configuration_that_is_no_object_is_refused_by_key(quantization: Any) -> None:
    with pytest.raises(ValueError, match=r"quantization_config=.* must be an object"):
        QuantScheme(quantization)


def test_a_method_must_be_named_unless_the_settings_are_modelopts_own_file() -> None:
    """vLLM knows the method by its name, and gives it to the latter alone."""
    with pytest.raises(ValueError, match="quant_method=None"):
        QuantScheme({"quant_algo": "NVFP4", "producer": {"name": "modelopt"}})
    with pytest.raises(ValueError, match="quant_method=None"):
        QuantScheme({"quantization": {"quant_algo": "NVFP4"}})
    for method in ("modelopt", "ModelOpt_fp4"):
        assert QuantScheme({"quant_method": method, "quant_algo": "NVFP4"}).format_of("a") == "NVFP4"


def test_the_published_checkpoint_has_nvfp4_experts_and_mxfp8_projections() -> None:
    """Fact M6."""
    scheme = QuantScheme(published_quantization())
    moe = f"{LAYER}.block_sparse_moe"
    expected = {
        f"{moe}.experts.127.w2": "NVFP4",
        f"{moe}.shared_experts.down_proj": "MXFP8",
        f"{moe}.gate": None,
        f"{LAYER}.self_attn.index_k_proj": "MXFP8",
        f"{LAYER}.self_attn.o_proj": "MXFP8",
        "model.layers.0.mlp.gate_proj": "MXFP8",
        "lm_head": None,
    }
    assert {module: scheme.format_of(module) for module in expected} == expected

"""A configuration that can't be served right stops with the name of its key."""

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig

from msa_model.config import MSAShape, check_block_size, check_cuts, check_engine_config, check_model_config
from msa_model.hf_config import MiniMaxM31FlashConfig
from msa_model.plugin import register
from msa_model.published import ARCHITECTURE
from msa_model.quant import METHOD, MSAQuantConfig
from tests.unit.msa_model.factories import make_config, make_plain


def make_engine(**changes: Any) -> Any:
    values = {
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "data_parallel_size": 1,
        "enable_eplb": False,
        "kv_transfer_config": None,
        "cache_dtype": "auto",
        "indexer_kv_dtype": "auto",
    } | changes
    space = SimpleNamespace(**values)
    return SimpleNamespace(
        parallel_config=space,
        cache_config=space,
        attention_config=space,
        kv_transfer_config=values["kv_transfer_config"],
    )


def test_the_nano_config_is_served() -> None:
    check_model_config(make_config())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("head_dim", 64),
        ("num_key_value_heads", 3),
        ("scoring_func", "softmax"),
        ("hidden_act", "silu"),
        ("qk_norm_type", "per_layer"),
        ("use_gemma_norm", False),
        ("use_routing_bias", False),
        ("attention_output_gate", True),
        ("tie_word_embeddings", True),
        ("moe_layer_freq", [0, 1]),
        ("sparse_block_size", 64),
        ("sparse_index_dim", 64),
        ("sparse_num_index_heads", 2),
        ("sparse_score_type", "mean"),
        ("sparse_init_block", 1),
        ("sparse_local_block", 0),
        ("sparse_local_block", 5),
        ("sparse_attention_freq", [1, 1, 1]),
        ("sparse_attention_freq", [0, 0, 0, 0]),
        ("sparse_attention_freq", [2, 1, 1, 1]),
        ("sparse_disable_index_value", [0, 1, 1, 1]),
        ("quant_algo", "MXFP8"),
        ("quant_algo", "FP8"),
        ("group_size", 32),
        ("moe_layer_freq", [0, 1, 1, 1, 1]),
        ("use_qk_norm", False),
        ("rotary_dim", 128),
        ("rope_parameters", {"rope_type": "linear", "factor": 4.0}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 10_000.0}),
        ("quantization_config", None),
    ],
)
def test_a_model_that_cannot_be_served_right_is_refused_by_key(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        check_model_config(make_config(**{key: value}))


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("pipeline_parallel_size", 2, "pipeline_parallel_size"),
        ("decode_context_parallel_size", 2, "decode_context_parallel_size"),
        ("enable_eplb", True, "enable_eplb"),
        ("cache_dtype", "fp8", "kv_cache_dtype"),
        ("indexer_kv_dtype", "fp8", "attention_config.indexer_kv_dtype"),
    ],
)
def test_engine_settings_that_cannot_be_served_right_are_refused_by_key(key: str, value: Any, named: str) -> None:
    check_engine_config(make_engine())
    with pytest.raises(ValueError, match=named):
        check_engine_config(make_engine(**{key: value}))


def test_replicas_serve_without_a_connector_and_are_refused_with_one() -> None:
    check_engine_config(make_engine(data_parallel_size=4))
    with pytest.raises(ValueError, match=r"data_parallel_size=4 .* side channel"):
        check_engine_config(make_engine(data_parallel_size=4, kv_transfer_config=object()))


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("rms_norm_eps", (0, -1e-6, 1e-300, 2, float("nan"), float("inf"), "1e-6", None, True)),
        ("swiglu_limit", (0, -7.0, float("nan"), float("inf"), 1e9, None, "7")),
        ("swiglu_alpha", (0, -1.702, float("nan"), [1.702])),
        ("swiglu_beta", (float("nan"), float("inf"), 1e9, None)),
        ("routed_scaling_factor", (0, -2.0, float("inf"), 10**400, "2")),
        ("rope_theta", (0, -5e6, float("nan"), float("inf"), {}, 1e30)),
        ("partial_rotary_factor", (0, float("nan"), 2, None)),
        ("num_experts_per_tok", (0, -1, 9, 2.0, "2", None, True)),
        ("max_position_embeddings", (0, -1, 10**12, 8192.0, None)),
        ("vocab_size", (0, -1, 10**12, 512.0, "512")),
        ("num_hidden_layers", (0, -4, 4.0, True, 10**12)),
        ("num_local_experts", (0, -8, 10**12, 8.0, None)),
        ("n_shared_experts", (-1, 1.0, 10**12, None)),
        ("hidden_size", (0, -256, 256.0, 10**30)),
        ("intermediate_size", (0, 128.0, 10**12)),
        ("dense_intermediate_size", (0, "512", 10**12)),
        ("num_attention_heads", (0, 16.0, 10**12)),
        ("num_key_value_heads", (0, -4, None)),
        ("head_dim", (128.0, "128", None)),
        ("rotary_dim", (0, 64.0)),
        ("use_qk_norm", ("false", 1, None)),
        ("attention_output_gate", ("false", None)),
        ("moe_layer_freq", (3, None, "0111", [0, 1, 1, 2], ["0", "1", "1", "1"])),
        ("dtype", ("float8", 5)),
        ("eos_token_id", ("x", -1, 512, 1.0, [1, None], {})),
        ("bos_token_id", (True, [[0]])),
        ("rope_parameters", ("linear", [1])),
        ("sparse_attention_config", (None, [], "x")),
        ("use_sparse_attention", (False, "true")),
        ("sparse_topk_blocks", (0, 4.0, "4", None, 10**9)),
        ("sparse_local_block", (None, 1.0)),
        ("sparse_attention_freq", (1, [], "1111", [[1]] * 4)),
        ("sparse_disable_index_value", (1, [1], ["1"] * 4)),
    ],
)
def test_a_value_of_another_kind_or_beyond_its_bounds_is_refused_by_key_with_what_is_allowed(
    key: str, values: tuple[Any, ...]
) -> None:
    for value in values:
        config = make_plain(**{key: value})
        with pytest.raises(ValueError, match=rf"{key}=.* can't be served: it must be \S") as refused:
            check_model_config(config)
        assert len(str(refused.value)) < 300


def test_more_experts_than_names_can_be_listed_of_are_refused_at_once() -> None:
    config = make_plain(num_hidden_layers=500, moe_layer_freq=[1] * 500, num_local_experts=1000)
    with pytest.raises(ValueError, match=r"num_local_experts=1000 .* 1 to 131 on 500 layers"):
        check_model_config(config)


def test_layers_without_an_index_branch_are_dense_and_have_no_slot_of_index_keys() -> None:
    config = make_config(sparse_attention_freq=[0, 1, 0, 1], sparse_disable_index_value=[0, 1, 0, 1])
    shape = MSAShape.from_config(config, 1)
    assert shape.dense_layers == {0, 2}
    assert shape.num_index_layers == 2
    assert [shape.index_slot(layer) for layer in (1, 3)] == [0, 1]


def test_a_model_that_says_nothing_of_a_pattern_has_an_index_branch_on_every_layer() -> None:
    assert MSAShape.from_config(make_config(sparse_attention_freq=None), 1).dense_layers == frozenset()


def test_ranks_that_cut_a_group_of_an_expert_are_refused_unless_experts_stay_whole() -> None:
    config = make_config()
    check_cuts(config, 4, 4)
    with pytest.raises(ValueError, match=r"16 .*experts"):
        check_cuts(config, 4, 16)
    check_cuts(config, 4, 1)


def test_ranks_that_cut_a_group_of_a_projection_are_refused() -> None:
    layers = {"*.experts.*": {"quant_algo": "NVFP4"}, "*shared_experts*": {"quant_algo": "MXFP8"}}
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    config = make_config(quantization_config=mixed)
    check_cuts(config, 4, 1)
    with pytest.raises(ValueError, match=r"8 .*shared_experts"):
        check_cuts(config, 8, 1)


def test_a_block_is_the_block_that_is_selected() -> None:
    check_block_size(128)
    with pytest.raises(ValueError, match="block_size=64"):
        check_block_size(64)


@pytest.mark.parametrize(("tp_size", "heads", "kv_heads"), [(1, 16, 4), (2, 8, 2), (4, 4, 1), (8, 2, 1)])
def test_heads_are_split_over_ranks_and_kv_heads_replicated_beyond_their_number(
    tp_size: int, heads: int, kv_heads: int
) -> None:
    shape = MSAShape.from_config(make_config(), tp_size)
    assert (shape.num_heads, shape.num_kv_heads, shape.topk_blocks) == (heads, kv_heads, 4)


@pytest.mark.parametrize("tp_size", [3, 32])
def test_ranks_that_do_not_divide_the_heads_are_refused(tp_size: int) -> None:
    with pytest.raises(ValueError, match="tensor_parallel_size"):
        MSAShape.from_config(make_config(), tp_size)


def test_ranks_that_split_a_kv_head_unevenly_are_refused() -> None:
    config = make_config(num_attention_heads=24, num_key_value_heads=4, sparse_num_index_heads=4)
    with pytest.raises(ValueError, match="num_key_value_heads"):
        MSAShape.from_config(config, 6)


def test_registering_twice_is_harmless_and_makes_the_names_known() -> None:
    from vllm import ModelRegistry
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, get_quantization_config

    register()
    register()
    assert ARCHITECTURE in ModelRegistry.get_supported_archs()
    assert QUANTIZATION_METHODS.count(METHOD) == 1
    assert get_quantization_config(METHOD) is MSAQuantConfig
    assert isinstance(AutoConfig.for_model("minimax_m31_flash"), MiniMaxM31FlashConfig)


def test_only_nvfp4_checkpoints_of_this_model_are_claimed() -> None:
    ours, theirs = SimpleNamespace(model_type="minimax_m31_flash"), SimpleNamespace(model_type="llama")
    nvfp4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    assert MSAQuantConfig.override_quantization_method(nvfp4, None, ours) == METHOD
    assert MSAQuantConfig.override_quantization_method(nvfp4, None, theirs) is None
    assert MSAQuantConfig.override_quantization_method(nvfp4 | {"quant_algo": "FP8"}, None, ours) is None

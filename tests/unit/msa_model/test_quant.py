"""Each layer gets the method of its format: vLLM's where it has kernels, plain torch elsewhere."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod

import msa_model.quant as quant
from msa_model.linear import TorchMxFp8LinearMethod
from msa_model.moe import TorchModelOptNvFp4MoEMethod
from msa_model.published import published_quantization
from msa_model.quant import METHOD, MSAQuantConfig

LAYER = "model.layers.7"


def layer(kind: type, dtype: torch.dtype) -> Any:
    """One without weights, of vLLM's class."""
    made: Any = object.__new__(kind)
    torch.nn.Module.__init__(made)
    made.params_dtype = dtype
    made.moe_config = SimpleNamespace(in_dtype=dtype)
    return made


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it looks there; vLLM's methods, which look for kernels, are stood in for."""
    platform = SimpleNamespace(is_cuda_alike=lambda: True, device_name="cuda")
    monkeypatch.setattr(quant, "current_platform", platform)
    monkeypatch.setattr(quant, "ModelOptNvFp4FusedMoE", lambda config, moe: ("vLLM's NVFP4", config.group_size))
    monkeypatch.setattr(quant, "build_linear_method", lambda config, algo, prefix: (algo, config.quant_method, prefix))


def methods(dtype: torch.dtype) -> list[Any]:
    config = MSAQuantConfig.from_config(published_quantization())
    experts = config.get_quant_method(layer(RoutedExperts, dtype), f"{LAYER}.block_sparse_moe.experts")
    prefixes = ("self_attn.qkv_proj", "block_sparse_moe.shared_experts.gate_up_proj", "self_attn.o_proj")
    return [experts, *(config.get_quant_method(layer(LinearBase, dtype), f"{LAYER}.{name}") for name in prefixes)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_kernels_all_is_decoded_and_runs_in_plain_torch(dtype: torch.dtype) -> None:
    experts, *linears = (type(method) for method in methods(dtype))
    assert experts is TorchModelOptNvFp4MoEMethod
    assert linears == [TorchMxFp8LinearMethod] * 3


@pytest.mark.usefixtures("on_cuda")
def test_half_precision_on_cuda_runs_in_vllms_methods() -> None:
    experts, qkv, *_ = methods(torch.bfloat16)
    assert experts == ("vLLM's NVFP4", 16)
    assert qkv == ("MXFP8", "MXFP8", f"{LAYER}.self_attn.qkv_proj")


@pytest.mark.usefixtures("on_cuda")
def test_float16_runs_in_vllms_methods_but_where_they_take_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's MXFP8 method names bfloat16 alone."""
    said: list[str] = []
    monkeypatch.setattr(quant.logger, "info_once", lambda text, *args: said.append(text % args))
    experts, *linears = methods(torch.float16)
    assert experts == ("vLLM's NVFP4", 16)
    assert [type(method) for method in linears] == [TorchMxFp8LinearMethod] * 3
    assert said[0] == "NVFP4: quantised weights run in vLLM's ModelOpt kernels"
    assert said[1].startswith(
        "MXFP8: quantised weights are decoded to torch.float16 and run in plain torch: kernels take"
    )


def test_vllms_methods_take_the_activations_that_they_are_given() -> None:
    config = MSAQuantConfig.from_config(published_quantization())
    assert set(quant.KERNEL_DTYPES["MXFP8"]) == set(config.mxfp8.get_supported_act_dtypes())
    assert set(quant.KERNEL_DTYPES["NVFP4"]) <= set(config.nvfp4.get_supported_act_dtypes())


@pytest.mark.usefixtures("on_cuda")
def test_float32_on_cuda_runs_in_plain_torch() -> None:
    """No kernel takes such activations."""
    assert [type(method) for method in methods(torch.float32)] == [
        TorchModelOptNvFp4MoEMethod,
        *[TorchMxFp8LinearMethod] * 3,
    ]


def test_what_is_not_quantised_stays_as_it_is() -> None:
    config = MSAQuantConfig.from_config(published_quantization())
    gate = config.get_quant_method(layer(LinearBase, torch.float32), f"{LAYER}.block_sparse_moe.gate")
    assert isinstance(gate, UnquantizedLinearMethod)
    assert config.get_quant_method(torch.nn.Module(), "model.embed_tokens") is None


def test_both_kinds_of_checkpoint_of_this_model_are_claimed_and_no_other() -> None:
    ours = SimpleNamespace(model_type="minimax_m31_flash")

    def claimed(algo: str) -> str | None:
        return MSAQuantConfig.override_quantization_method({"quant_method": "modelopt", "quant_algo": algo}, None, ours)

    assert [claimed(algo) for algo in ("NVFP4", "MIXED_PRECISION", "mixed_precision")] == [METHOD] * 3
    assert [claimed(algo) for algo in ("FP8", "MXFP8")] == [None, None]
    assert MSAQuantConfig.override_quantization_method(published_quantization(), None, SimpleNamespace()) is None

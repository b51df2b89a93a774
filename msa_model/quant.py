"""Checkpoint quantization: routed experts in ModelOpt NVFP4, everything else as it is stored."""

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config

from msa_model.moe import TorchModelOptNvFp4MoEMethod

METHOD = "minimax_m31_nvfp4"
MODEL_TYPE = "minimax_m31_flash"


class MSANvFp4Config(ModelOptNvFp4Config):
    """ModelOpt's NVFP4 config, for our model type alone, with experts that run in plain torch."""

    def get_name(self) -> str:
        return METHOD

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any] | None, user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Claim NVFP4 checkpoints of our model type, before vLLM's own ModelOpt methods do."""
        if getattr(hf_config, "model_type", None) != MODEL_TYPE:
            return None
        return METHOD if cls._extract_modelopt_quant_algo(hf_quant_cfg) == "NVFP4" else None

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        if isinstance(layer, RoutedExperts):
            return TorchModelOptNvFp4MoEMethod(self, layer.moe_config)
        return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None


def register_quantization() -> None:
    """Make ``METHOD`` known to vLLM; idempotent."""
    if METHOD not in QUANTIZATION_METHODS:
        register_quantization_config(METHOD)(MSANvFp4Config)

"""Checkpoint quantisation for vLLM: which method runs each layer of an NVFP4 or mixed-precision checkpoint.

On CUDA with half-precision activations vLLM's own ModelOpt methods run (NVFP4 experts, MXFP8 projections); elsewhere
plain torch, which decodes the weights when they are loaded.
"""

from typing import Any

import torch
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.quantization.modelopt import (
    ModelOptMxFp8Config,
    ModelOptNvFp4Config,
    ModelOptNvFp4FusedMoE,
    ModelOptQuantConfigBase,
    build_linear_method,
)
from vllm.platforms import current_platform

from msa_model.linear import TorchMxFp8LinearMethod
from msa_model.moe import TorchModelOptNvFp4MoEMethod
from msa_model.published import MODEL_TYPE
from msa_model.quant_scheme import MIXED, QuantScheme

METHOD = "minimax_m31"
# A checkpoint name that stands for the projections that vLLM fuses; they are stored alike (``check_model_config``).
FIRST_OF_FUSED = {"qkv_proj": "q_proj", "gate_up_proj": "gate_proj"}

logger = init_logger(f"vllm.{__name__}")


class MSAQuantConfig(ModelOptQuantConfigBase):
    """ModelOpt's NVFP4 and mixed precision, for our model type alone."""

    def __init__(self, scheme: QuantScheme) -> None:
        super().__init__(exclude_modules=[])
        self.scheme = scheme
        self.nvfp4 = ModelOptNvFp4Config(is_checkpoint_nvfp4_serialized=True)
        self.mxfp8 = ModelOptMxFp8Config(
            is_checkpoint_mxfp8_serialized=True, kv_cache_quant_algo=None, exclude_modules=[]
        )

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MSAQuantConfig":
        """From a checkpoint's ``quantization_config``; ValueError, naming the key, for what can't be served."""
        return cls(QuantScheme(config))

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
        """Claim checkpoints of our model type, before vLLM's own ModelOpt methods do."""
        if getattr(hf_config, "model_type", None) != MODEL_TYPE:
            return None
        return METHOD if cls._extract_modelopt_quant_algo(hf_quant_cfg) in ("NVFP4", MIXED) else None

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        if isinstance(layer, RoutedExperts):
            if has_vllm_kernels(layer.moe_config.in_dtype):
                return ModelOptNvFp4FusedMoE(self.nvfp4, layer.moe_config)
            return TorchModelOptNvFp4MoEMethod(self.nvfp4, layer.moe_config)
        if not isinstance(layer, LinearBase):
            return None
        parent, _, name = prefix.rpartition(".")
        stored = self.scheme.format_of(f"{parent}.{FIRST_OF_FUSED.get(name, name)}")
        if stored is None:
            return UnquantizedLinearMethod()
        assert stored == "MXFP8", "check_model_config refuses other projections"
        if has_vllm_kernels(layer.params_dtype):
            return build_linear_method(self.mxfp8, stored, prefix)
        return TorchMxFp8LinearMethod()


def has_vllm_kernels(dtype: torch.dtype) -> bool:
    """Whether vLLM's kernels for quantised weights run here, with activations of ``dtype``; said once in the log."""
    if not current_platform.is_cuda_alike():
        reason = f"there are no kernels for {current_platform.device_name}"
    elif dtype not in (torch.bfloat16, torch.float16):
        reason = f"kernels take no activations of {dtype}"
    else:
        logger.info_once("quantised weights run in vLLM's ModelOpt kernels")
        return True
    logger.info_once("quantised weights are decoded to %s and run in plain torch: %s", dtype, reason)
    return False


def register_quantization() -> None:
    """Make ``METHOD`` known to vLLM; idempotent."""
    if METHOD not in QUANTIZATION_METHODS:
        register_quantization_config(METHOD)(MSAQuantConfig)

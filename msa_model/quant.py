"""Checkpoint quantisation for vLLM: which method runs each layer of an NVFP4 or mixed-precision checkpoint.

On GPUs vLLM's own ModelOpt methods run with the activations that they take (``KERNEL_DTYPES``); elsewhere plain torch,
which decodes the weights when they are loaded.
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
from msa_model.quant_scheme import MIXED, Format, QuantScheme

METHOD = "minimax_m31"
# A checkpoint name that stands for the projections that vLLM fuses; they are stored alike (``check_model_config``).
FIRST_OF_FUSED = {"qkv_proj": "q_proj", "gate_up_proj": "gate_proj"}

# Activations that vLLM's methods name. Its MXFP8 takes no float16, where a scale of 2^-25 would become 0.
# On ROCm both run too, as far as vLLM 0.33's sources say: MXFP8 natively on gfx950, else decoded when it is loaded, and
# NVFP4 experts in a Triton kernel that decodes them as it goes, so that they stay four bits wide.
KERNEL_DTYPES = {"NVFP4": (torch.bfloat16, torch.float16), "MXFP8": (torch.bfloat16,)}

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
            if has_vllm_kernels("NVFP4", layer.moe_config.in_dtype):
                return ModelOptNvFp4FusedMoE(self.nvfp4, layer.moe_config)
            return TorchModelOptNvFp4MoEMethod(self.nvfp4, layer.moe_config)
        if not isinstance(layer, LinearBase):
            return None
        parent, _, name = prefix.rpartition(".")
        stored = self.scheme.format_of(f"{parent}.{FIRST_OF_FUSED.get(name, name)}")
        if stored is None:
            return UnquantizedLinearMethod()
        assert stored == "MXFP8", "check_model_config refuses other projections"
        if has_vllm_kernels(stored, layer.params_dtype):
            return build_linear_method(self.mxfp8, stored, prefix)
        return TorchMxFp8LinearMethod()


def has_vllm_kernels(stored: Format, dtype: torch.dtype) -> bool:
    """Whether vLLM's kernels for weights ``stored`` so run here, with activations of ``dtype``; once in the log."""
    if not current_platform.is_cuda_alike():
        reason = f"there are no kernels for {current_platform.device_name}"
    elif dtype not in KERNEL_DTYPES[stored]:
        reason = f"kernels take no activations of {dtype}"
    else:
        logger.info_once("%s: quantised weights run in vLLM's ModelOpt kernels", stored)
        return True
    logger.info_once("%s: quantised weights are decoded to %s and run in plain torch: %s", stored, dtype, reason)
    return False


def register_quantization() -> None:
    """Make ``METHOD`` known to vLLM; idempotent."""
    if METHOD not in QUANTIZATION_METHODS:
        register_quantization_config(METHOD)(MSAQuantConfig)

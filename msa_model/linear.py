"""Linear layers whose weights are stored as ModelOpt MXFP8, in plain torch: decoded when they are loaded."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.linear import LinearMethodBase, register_weight_loader_v2_supported_method
from vllm.model_executor.parameter import ModelWeightParameter

from msa_model.quant_scheme import MXFP8_GROUP
from msa_model.reference.mxfp8 import dequantize


@register_weight_loader_v2_supported_method
class TorchMxFp8LinearMethod(LinearMethodBase):
    """The parameters of vLLM's ModelOpt MXFP8 method, decoded once and multiplied in the activations' dtype.

    Activations are not rounded to MXFP8 as a kernel would: this is what kernels approximate.
    """

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Register ``weight`` [O, I] and ``weight_scale`` [O, I/32]; ValueError unless I is a multiple of 32."""
        if input_size_per_partition % MXFP8_GROUP:
            raise ValueError(f"{input_size_per_partition} inputs on this rank are no multiple of {MXFP8_GROUP}")
        loader: Callable[..., None] = extra_weight_attrs["weight_loader"]
        layer.logical_widths = output_partition_sizes
        rows, columns = sum(output_partition_sizes), input_size_per_partition
        for name, size, dtype in (
            ("weight", columns, torch.float8_e4m3fn),
            ("weight_scale", columns // MXFP8_GROUP, torch.uint8),
        ):
            data = torch.empty(rows, size, dtype=dtype)
            parameter = ModelWeightParameter(data=data, input_dim=1, output_dim=0, weight_loader=loader)
            layer.register_parameter(name, parameter)
        self.dtype = params_dtype

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Decode once; the packed weights stay, so that they can be loaded anew."""
        layer.weight_decoded = dequantize(layer.weight.data, layer.weight_scale.data).to(self.dtype)

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x`` [T, I] -> [T, O]."""
        return nn.functional.linear(x, layer.weight_decoded, bias)

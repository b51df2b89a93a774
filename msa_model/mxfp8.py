"""MXFP8 in plain torch: E4M3 values, one power of two (E8M0) per 32 of a row; and the linear layers stored in it.

The twin that kernels are checked against. A scale's byte ``b`` means 2 ** (b - 127); 255 is NaN.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.linear import LinearMethodBase, register_weight_loader_v2_supported_method
from vllm.model_executor.parameter import ModelWeightParameter

from msa_model.quant_scheme import MXFP8_GROUP

E4M3_MAX = 448.0
E8M0_BIAS = 127


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round to MXFP8: ``x`` [..., D] float -> E4M3 [..., D] and scale bytes uint8 [..., D/32], D a multiple of 32.

    The scale of a group is the smallest power of two that keeps its largest value within E4M3's range, so nothing
    saturates; values round to nearest even.
    """
    groups = x.float().unflatten(-1, (-1, MXFP8_GROUP))
    # Exact: the ratio is mantissa * 2 ** exponent with a mantissa in [0.5, 1); a power of two itself needs one less.
    mantissa, exponent = torch.frexp(groups.abs().amax(-1) / torch.tensor(E4M3_MAX, device=x.device))
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    scale = (exponent + E8M0_BIAS).clamp(0, 254).to(torch.uint8)
    values = torch.ldexp(groups, (E8M0_BIAS - scale.int()).unsqueeze(-1)).to(torch.float8_e4m3fn)
    return values.flatten(-2), scale


def dequantize(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float32 [..., D] from E4M3 [..., D] and scale bytes uint8 [..., D/32]; exact."""
    groups = values.float().unflatten(-1, (-1, MXFP8_GROUP))
    factor = scale.view(torch.float8_e8m0fnu).float()
    return (groups * factor.unsqueeze(-1)).flatten(-2)


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

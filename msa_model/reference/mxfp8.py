"""MXFP8 in plain torch: E4M3 values, and one power of two (E8M0) per 32 values of a row.

The twin that kernels are checked against. A scale's byte ``b`` means 2 ** (b - 127); 255 is NaN.
"""

import torch

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

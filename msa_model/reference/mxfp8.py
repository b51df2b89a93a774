"""MXFP8 in plain torch: E4M3 values, and one power of two (E8M0) per 32 values of a row.

The twin that kernels are checked against. A scale's byte ``b`` means 2 ** (b - 127); 255 is NaN.
Packed rows, as collectives carry them, are one token each: D bytes of values, then D / 32 of scales.
"""

import torch

from msa_model.quant_scheme import MXFP8_GROUP

E4M3_MAX = 448.0
E8M0_BIAS, E8M0_NAN = 127, 255


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round to MXFP8: ``x`` [..., D] float -> E4M3 [..., D] and scale bytes uint8 [..., D/32], D a multiple of 32.

    The scale of a group is the smallest power of two that keeps its largest value within E4M3's range, so nothing
    saturates; values round to nearest even. A group too small for a quotient has scale 1. One with an infinity or NaN
    becomes NaN as a whole, scale and values: what torch makes of an infinity in E4M3 depends on its version.
    """
    groups = x.float().unflatten(-1, (-1, MXFP8_GROUP))
    largest = groups.abs().amax(-1)
    # Exact: the ratio is mantissa * 2 ** exponent with a mantissa in [0.5, 1); a power of two itself needs one less.
    # By a tensor, as GPUs would multiply by a number's inverse; made on the device, as CUDA graphs copy nothing there.
    mantissa, exponent = torch.frexp(largest / largest.new_full((), E4M3_MAX))
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    is_lost = ~largest.isfinite()
    scale = (exponent + E8M0_BIAS).clamp(0, 254).masked_fill(is_lost, E8M0_NAN).to(torch.uint8)
    inverse = (2 * E8M0_BIAS - scale).view(torch.float8_e8m0fnu).float().unsqueeze(-1)
    values = (groups * inverse).masked_fill(is_lost.unsqueeze(-1), torch.nan).to(torch.float8_e4m3fn)
    return values.flatten(-2), scale


def dequantize(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float32 [..., D] from E4M3 [..., D] and scale bytes uint8 [..., D/32]; exact."""
    groups = values.float().unflatten(-1, (-1, MXFP8_GROUP))
    factor = scale.view(torch.float8_e8m0fnu).float()
    return (groups * factor.unsqueeze(-1)).flatten(-2)


def encode(x: torch.Tensor, rows: torch.Tensor) -> None:
    """Pack ``x`` [T, D] float into ``rows`` uint8 [T, D + D/32]."""
    values, scale = quantize(x)
    width = x.shape[1]
    rows[:, :width] = values.view(torch.uint8)
    rows[:, width:] = scale


def decode(rows: torch.Tensor, out: torch.Tensor) -> None:
    """Unpack ``rows`` uint8 [T, D + D/32] into ``out`` [T, D] of any float dtype; exact but for that."""
    width = out.shape[1]
    values = rows[:, :width].contiguous().view(torch.float8_e4m3fn)
    out.copy_(dequantize(values, rows[:, width:].contiguous()))


def add_rms_norm_encode(
    residual: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    rows: torch.Tensor,
    normed: torch.Tensor | None,
) -> None:
    """Add ``delta`` to ``residual`` [T, D] in place, and pack the Gemma RMS norm of the sum into ``rows``.

    Rounds where the model does: the sum, and the norm of the rounded sum, to the dtype of ``residual``; between them
    everything is float32, in the order of vLLM's ``GemmaRMSNorm.forward_native``. ``normed`` [T, D] receives the norm.
    """
    if delta is not None:
        residual += delta
    x = residual.float()
    x = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps)
    result = (x * (weight.float() + 1.0)).to(residual.dtype)
    if normed is not None:
        normed.copy_(result)
    encode(result, rows)

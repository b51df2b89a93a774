"""Rows of activations packed as MXFP8, so that one collective carries values and scales (facts P2, P3).

Owns the checks of arguments and the choice between kernels and the twin, ``msa_model.reference.mxfp8``.

===================== ==========================================================================
bytes of a row         what
===================== ==========================================================================
0 to D - 1             E4M3 values
D to D + D/32 - 1      E8M0 scales, one for each 32 values: byte b is 2 ** (b - 127), 255 is NaN
===================== ==========================================================================

Rows may lie any number of bytes apart, so one may be the beginning of a longer one; multiples of 16 are fastest.
A group of 32 values that has an infinity or NaN is NaN as a whole, so that decoding can't hide it.
"""

from types import ModuleType

import torch

from msa_model.quant_scheme import MXFP8_GROUP
from msa_model.reference import mxfp8 as twin

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def row_bytes(width: int) -> int:
    """Bytes of a packed row of ``width`` values; ValueError unless that is a multiple of 32."""
    if width <= 0 or width % MXFP8_GROUP:
        raise ValueError(f"MXFP8 rows hold multiples of {MXFP8_GROUP} values, not {width}")
    return width + width // MXFP8_GROUP


def encode_rows(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Packed rows uint8 [T, D + D/32] of ``x`` [T, D], bit for bit those of the twin.

    Args:
        x: float32, bfloat16 or float16, contiguous in its last dimension.
        out: where to put the rows, else they are new and contiguous.

    Raises:
        ValueError: another dtype or shape.
    """
    _check_values("x", x, x.shape, x.dtype)
    rows = _rows_of(x, out)
    if x.numel():
        _runner(x.device).encode(x, rows)
    return rows


def decode_rows(rows: torch.Tensor, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    """[T, D] of ``dtype`` from packed ``rows`` uint8 [T, D + D/32]; exact as far as ``dtype`` can hold a value.

    Args:
        out: where to put the values, contiguous in its last dimension; else they are new.

    Raises:
        ValueError: another dtype or shape.
    """
    width = rows.shape[-1] // (MXFP8_GROUP + 1) * MXFP8_GROUP
    _check_rows("rows", rows, (rows.shape[0], row_bytes(width)))
    if out is None:
        out = torch.empty(rows.shape[0], width, dtype=dtype, device=rows.device)
    _check_values("out", out, torch.Size((rows.shape[0], width)), dtype)
    if out.numel():
        _runner(rows.device).decode(rows, out)
    return out


def add_rms_norm_encode(
    residual: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor | None = None,
    normed: torch.Tensor | None = None,
) -> torch.Tensor:
    """``residual += delta``, and packed rows of its Gemma RMS norm: what add, norm and ``encode_rows`` give in turn.

    The sum is rounded to the dtype of ``residual`` and the norm is of the rounded sum, as in this model's layers
    (vLLM's norm with a residual takes the sum before it is rounded). The norm follows ``GemmaRMSNorm.forward_native``:
    float32 statistics, times the inverse root, times weight + 1, then rounded once, before it is quantised. A kernel
    may sum squares in another order than the twin and has another inverse root (``rms_norm`` in the tolerances).

    Args:
        residual: [T, D] float32, bfloat16 or float16, contiguous in its last dimension; updated in place.
        delta: the same shape and dtype; None: nothing is added.
        weight: [D] of any float dtype, without the 1.
        out: where to put the rows, uint8 [T, D + D/32], else they are new.
        normed: [T, D], receives the norm before it is quantised, for a router.

    Raises:
        ValueError: another dtype or shape.
    """
    shape, dtype = residual.shape, residual.dtype
    for name, tensor in (("residual", residual), ("delta", delta), ("normed", normed)):
        if tensor is not None:
            _check_values(name, tensor, shape, dtype)
    if weight.shape != shape[1:] or not weight.is_contiguous() or not weight.is_floating_point():
        raise ValueError(f"weight must be float [{shape[1]}], not {weight.dtype} {tuple(weight.shape)}")
    rows = _rows_of(residual, out)
    if residual.numel():
        _runner(residual.device).add_rms_norm_encode(residual, delta, weight, eps, rows, normed)
    return rows


def _runner(device: torch.device) -> ModuleType:
    """Kernels for GPUs, else the twin: an engine on CPU has no use for Triton."""
    if device.type == "cuda":  # which AMD's GPUs are called too
        from msa_model.ops import mxfp8_launch

        return mxfp8_launch
    return twin


def _rows_of(x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    shape = (x.shape[0], row_bytes(x.shape[1]))
    if out is None:
        return torch.empty(shape, dtype=torch.uint8, device=x.device)
    _check_rows("out", out, shape)
    return out


def _check_rows(name: str, rows: torch.Tensor, shape: tuple[int, int]) -> None:
    if rows.shape != shape or rows.dtype != torch.uint8 or rows.stride(1) != 1:
        raise ValueError(f"{name} must be uint8 {shape} with contiguous rows, not {rows.dtype} {tuple(rows.shape)}")


def _check_values(name: str, x: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> None:
    if x.dim() != 2 or x.shape != shape or x.dtype != dtype or dtype not in DTYPES or x.stride(1) != 1:
        raise ValueError(
            f"{name} must be {dtype} {tuple(shape)}, of {', '.join(map(str, DTYPES))}, with contiguous rows, "
            f"not {x.dtype} {tuple(x.shape)} with strides {x.stride()}"
        )

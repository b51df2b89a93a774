"""NVFP4 in plain torch: E2M1 values, two to a byte, and one E4M3 scale per 16 values.

The twin that kernels are checked against. The FP32 scale per tensor (fact M4) is 1 in the KV cache and is applied by
the caller for weights.

A group of 16 values::

    data    8 bytes   byte i: value 2i in bits 0-3, value 2i+1 in bits 4-7; bit 3 of a nibble is the sign
    scale   1 byte    E4M3 (largest finite 448), never negative
"""

import functools
import itertools

import torch

GROUP = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Midpoints between neighbours; at an exact midpoint the even code wins (IEEE round to nearest even).
_MIDPOINTS = tuple((a + b) / 2 for a, b in itertools.pairwise(E2M1_MAGNITUDES))


def nvfp4_bytes(dim: int) -> int:
    """Bytes of one head vector of ``dim`` values, data and scales: 72 for 128."""
    return dim // 2 + dim // GROUP


@functools.lru_cache
def _byte_values(device: torch.device) -> torch.Tensor:
    """The two float32 values of each byte side by side as one float64 [256], which one lookup fetches.

    Cached per device, as a copy from the host is illegal while a CUDA graph is captured.
    """
    # Of a dtype of its own, as vLLM makes the default that of the model while weights are loaded.
    signed = torch.tensor([*E2M1_MAGNITUDES, *(-m for m in E2M1_MAGNITUDES)], dtype=torch.float32)
    byte = torch.arange(256)
    pairs = torch.stack([signed[byte & 15], signed[byte >> 4]], dim=-1)
    return pairs.view(torch.float64).flatten().to(device)


def warm_up(device: torch.device) -> None:
    """Place the decoding table on ``device``, before any graph is captured there."""
    _byte_values(device)


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round to the nearest NVFP4 numbers.

    ``x`` [..., D] of any float dtype, D a multiple of 16 -> data uint8 [..., D/2], scale float8_e4m3fn [..., D/16].
    Values beyond 6 x 448 saturate. Ties go to the even code. A group whose scale rounds to zero becomes zero.
    """
    groups = x.float().unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(-1)
    # CUDA torch turns a division by a Python number into a multiplication by its inverse, which moves scales.
    scale = (largest / torch.full_like(largest, E2M1_MAX)).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    divisor = scale.float().unsqueeze(-1)
    scaled = torch.where(divisor > 0, groups / torch.where(divisor > 0, divisor, 1.0), 0.0)
    magnitude = scaled.abs()
    code = torch.zeros(magnitude.shape, dtype=torch.uint8, device=x.device)
    for lower_code, midpoint in enumerate(_MIDPOINTS):
        code += (magnitude > midpoint) if lower_code % 2 == 0 else (magnitude >= midpoint)
    code |= (scaled < 0).to(torch.uint8) << 3
    code = code.flatten(-2)
    return code[..., 0::2] | (code[..., 1::2] << 4), scale


def dequantize(data: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float32 [..., D] from data uint8 [..., D/2] and scale [..., D/16], float8_e4m3fn or its bytes as uint8."""
    if scale.dtype == torch.uint8:
        scale = scale.view(torch.float8_e4m3fn)
    pairs = _byte_values(data.device).index_select(0, data.flatten().int())
    values = pairs.view(torch.float32).view(*scale.shape, GROUP)
    return (values * scale.float().unsqueeze(-1)).flatten(-2)


def round_to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """float32 values of ``x`` rounded to E4M3, saturating at 448; what queries are stored as (fact M4)."""
    return x.float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()

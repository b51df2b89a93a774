"""How far a kernel's result may lie from its twin's: one table for unit tests, GPU tests and benchmarks.

Each row is a relative L2 distance, ``|kernel - twin| / |twin|``, for an op and the number format of its matrix
products. The twin gets the same decoded and rounded operands, so what is left is the order of sums, the accumulator
and the rounding of softmax weights.
"""

import torch

RELATIVE_L2: dict[tuple[str, str], float] = {
    # Bytes, and values of the format: nothing may differ.
    ("nvfp4", "nvfp4"): 0.0,
    # float32 sums of exact products, in another order.
    ("index_score", "float16"): 2e-6,
    # Hopper's FP8 units align the products of one instruction to the largest and keep about 14 bits of each.
    ("index_score", "float8_e4m3fn"): 5e-4,
    # Softmax weights are rounded to the value's format before the second product: 2^-11 and 2^-8 each.
    ("sparse_attention", "float16"): 1e-3,
    ("sparse_attention", "bfloat16"): 5e-3,
    # The inverse root's last bits, which take a few halves in ten thousand over an edge of rounding, 2^-11 and 2^-8.
    ("rms_norm", "float32"): 1e-6,
    ("rms_norm", "float16"): 5e-5,
    ("rms_norm", "bfloat16"): 2e-4,
    # One layer with activations exchanged as MXFP8 beside the same layer rounded there: sums in another order move a
    # few values over an edge of rounding, by 2^-4 each.
    ("sp_exchange", "mxfp8"): 1e-3,
}


def tolerance(op: str, number_format: str) -> float:
    """Largest relative L2 distance of ``op`` with matrix operands of ``number_format``; KeyError if unknown."""
    return RELATIVE_L2[op, number_format]


def relative_l2(found: torch.Tensor, expected: torch.Tensor) -> float:
    """``|found - expected| / |expected|`` in float64; NaN if any value is, and 0 for two zeros."""
    expected = expected.double()
    distance = (found.double() - expected).norm().item()
    length = expected.norm().item()
    return distance / length if length else distance

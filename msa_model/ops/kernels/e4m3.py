"""Rounding to E4M3, to the nearest number, ties to even, beyond 448 to it: the same on every target.

NVIDIA GPUs convert so by themselves; the interpreter's conversion doesn't round to nearest even.
"""

import triton
import triton.language as tl


@triton.jit
def round_to_e4m3(x):
    """float32 values rounded to the nearest E4M3 number (ties to even, beyond 448 to it), still float32.

    A later conversion to float8e4nv is exact. NaN becomes some number on GPUs, whose maximum prefers those.
    """
    x = tl.minimum(tl.maximum(x, -448.0), 448.0)
    # 1.5 x 2^(e + 20), e the exponent of x but not below the least normal one, -6: float32 sums of that size are
    # multiples of 2^(e - 3), E4M3's distance between neighbours at x.
    exponent = tl.maximum((x.to(tl.int32, bitcast=True) >> 23) & 255, 121)
    magic = (((exponent + 20) << 23) | 0x400000).to(tl.float32, bitcast=True)
    return (x + magic) - magic


@triton.jit
def to_e4m3(x, TARGET: tl.constexpr):
    """float8e4nv of float32 values."""
    if TARGET == "other" or TARGET == "gfx950":
        x = round_to_e4m3(x)
    return x.to(tl.float8e4nv)


@triton.jit
def e4m3_bits(x):
    """uint8 codes of float32 values that are E4M3 numbers and not negative."""
    normal = (x.to(tl.int32, bitcast=True) >> 20) - 960  # the exponent's bias differs by 120, with 3 fraction bits
    return tl.where(x < 0.015625, (x * 512.0).to(tl.int32), normal).to(tl.uint8)

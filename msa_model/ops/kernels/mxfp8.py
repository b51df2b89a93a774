"""MXFP8 rows: E4M3 values and then their scales, one E8M0 byte for each 32; the twin is ``msa_model.reference.mxfp8``.

A tile is [4 G, 8]: G groups of 32 values in pieces of 8, one a thread. So halves and bytes of a piece are both one wide
load or store, neighbouring threads have neighbouring pieces, and four of them find the largest value of a group.
"""

import triton
import triton.language as tl

from msa_model.ops.kernels.e4m3 import e4m3_bits, round_to_e4m3

GROUP, PIECE = tl.constexpr(32), tl.constexpr(8)
ONE_SCALE, NAN_SCALE = tl.constexpr(127), tl.constexpr(255)
INFINITY_BITS, NAN_BITS = tl.constexpr(0x7F800000), tl.constexpr(0x7FC00000)
# 448 x 2^-150: a group of no larger values has only zeros under any scale, and the twin's quotient for it is zero.
VANISHING_BITS = tl.constexpr(224)
# 1.75 x 2^-119, and the next number: the largest value of a group that fits the least scale. The twin's quotient is
# subnormal there and rounds the latter down.
LEAST_SCALE_BITS = tl.constexpr(0x04600001)
# Carries into the exponent from a fraction above 1.75 on; 448 is 1.75 x 2^8.
ABOVE_448 = tl.constexpr(0x1FFFFF)


@triton.jit
def round_to_bf16(x):
    """float32 values rounded to the nearest bfloat16 number, ties to even, still float32; NaN stays NaN.

    For the interpreter, whose own conversion cuts off.
    """
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    is_number = (bits & 0x7FFFFFFF) <= INFINITY_BITS
    return tl.where(is_number, rounded, NAN_BITS).to(tl.float32, bitcast=True)


@triton.jit
def to_dtype(x, dtype: tl.constexpr, TARGET: tl.constexpr):
    """float32 values in ``dtype``, rounded to nearest even on every target."""
    if TARGET == "other" and dtype == tl.bfloat16:
        x = round_to_bf16(x)
    return x.to(dtype)


@triton.jit
def quantize_pieces(x, GROUPS: tl.constexpr, TARGET: tl.constexpr):
    """float32 [4 GROUPS, 8] to bytes of values uint8 [4 GROUPS, 8] and of scales uint8 [GROUPS], as the twin rounds."""
    # Sizes compare as integers do, with NaN above infinity, where a maximum of floats forgets NaN.
    size = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    largest = tl.max(tl.reshape(tl.max(size, axis=1), (GROUPS, 4)), axis=1)
    scale = tl.where(largest <= LEAST_SCALE_BITS, 0, ((largest + ABOVE_448) >> 23) - 8)
    is_lost = largest >= INFINITY_BITS
    scale = tl.where(is_lost, NAN_SCALE, tl.where(largest <= VANISHING_BITS, ONE_SCALE, scale))
    # A power of two between 2^-120 and 2^127: products are exact, or too small for the least E4M3 number.
    factor = tl.where(is_lost, NAN_BITS, (254 - scale) << 23).to(tl.float32, bitcast=True)
    scaled = x * per_piece(factor, GROUPS)[:, None]
    if TARGET == "other":
        sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
        values = e4m3_bits(round_to_e4m3(tl.abs(scaled))) | sign.to(tl.uint8)
        values = tl.where(scaled == scaled, values, 0x7F).to(tl.uint8)
    else:
        values = scaled.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return values, scale.to(tl.uint8)


@triton.jit
def per_piece(x, GROUPS: tl.constexpr):
    """[GROUPS] values of groups to [4 GROUPS] values of their pieces."""
    return tl.reshape(tl.broadcast_to(x[:, None], (GROUPS, 4)), (GROUPS * 4,))


@triton.jit
def e4m3_to_f32(values, TARGET: tl.constexpr):
    """float32 of E4M3 bytes."""
    if TARGET == "other":
        bits = values.to(tl.int32)
        # The exponent's bias differs by 120.
        size = ((bits & 0x7F) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36
        size = tl.where((bits & 0x7F) == 0x7F, float("nan"), size)
        return tl.where(bits >= 0x80, -size, size)
    else:
        return values.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def encode_kernel(
    x_ptr,  # [T, WIDTH]
    rows_ptr,  # uint8 [T, WIDTH + WIDTH / 32]
    num_groups,  # of all rows
    x_stride,
    rows_stride,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
    TARGET: tl.constexpr,
):
    """Quantise GROUPS groups of 32 values, counted through all rows."""
    piece = tl.program_id(0) * (GROUPS * 4) + tl.arange(0, GROUPS * 4)
    row = (piece // (WIDTH // PIECE)).to(tl.int64)
    column = (piece % (WIDTH // PIECE) * PIECE)[:, None] + tl.arange(0, PIECE)[None, :]
    is_value = (piece < num_groups * 4)[:, None]
    x = tl.load(x_ptr + (row * x_stride)[:, None] + column, mask=is_value, other=0.0)
    values, scale = quantize_pieces(x.to(tl.float32), GROUPS, TARGET)
    tl.store(rows_ptr + (row * rows_stride)[:, None] + column, values, mask=is_value)
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    scale_ptr = rows_ptr + (group // (WIDTH // GROUP)).to(tl.int64) * rows_stride + WIDTH + group % (WIDTH // GROUP)
    tl.store(scale_ptr, scale, mask=group < num_groups)


@triton.jit
def decode_kernel(
    rows_ptr,  # uint8 [T, WIDTH + WIDTH / 32]
    out_ptr,  # [T, WIDTH]
    num_groups,  # of all rows
    rows_stride,
    out_stride,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
    TARGET: tl.constexpr,
):
    """Decode GROUPS groups of 32 values, counted through all rows."""
    piece = tl.program_id(0) * (GROUPS * 4) + tl.arange(0, GROUPS * 4)
    row = (piece // (WIDTH // PIECE)).to(tl.int64)
    column = (piece % (WIDTH // PIECE) * PIECE)[:, None] + tl.arange(0, PIECE)[None, :]
    is_piece = piece < num_groups * 4
    row_ptr = rows_ptr + row * rows_stride
    values = tl.load(row_ptr[:, None] + column, mask=is_piece[:, None], other=0)
    # Read for each piece: the four of a group hit one cache line, and need no exchange.
    scale = tl.load(row_ptr + WIDTH + piece % (WIDTH // PIECE) // 4, mask=is_piece, other=0).to(tl.int32)
    # 2^-127 is subnormal.
    bits = tl.where(scale == 0, 0x400000, scale << 23)
    factor = tl.where(scale == NAN_SCALE, NAN_BITS, bits).to(tl.float32, bitcast=True)
    x = to_dtype(e4m3_to_f32(values, TARGET) * factor[:, None], out_ptr.dtype.element_ty, TARGET)
    tl.store(out_ptr + (row * out_stride)[:, None] + column, x, mask=is_piece[:, None])


@triton.jit
def add_rms_norm_encode_kernel(
    residual_ptr,  # [T, WIDTH], updated in place
    delta_ptr,  # [T, WIDTH], read if HAS_DELTA
    weight_ptr,  # [WIDTH]
    rows_ptr,  # uint8 [T, WIDTH + WIDTH / 32]
    normed_ptr,  # [T, WIDTH], written if HAS_NORMED
    residual_stride,
    delta_stride,
    rows_stride,
    normed_stride,
    eps,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
    HAS_DELTA: tl.constexpr,
    HAS_NORMED: tl.constexpr,
    TARGET: tl.constexpr,
):
    """Add, normalise and quantise one row; GROUPS is a power of two that holds its groups."""
    row = tl.program_id(0).to(tl.int64)
    column = (tl.arange(0, GROUPS * 4) * PIECE)[:, None] + tl.arange(0, PIECE)[None, :]
    is_value = column < WIDTH
    dtype: tl.constexpr = residual_ptr.dtype.element_ty
    residual = residual_ptr + row * residual_stride + column
    x = tl.load(residual, mask=is_value, other=0.0).to(tl.float32)
    # Rows pass through once, the weight stays.
    weight = tl.load(weight_ptr + column, mask=is_value, other=0.0, eviction_policy="evict_last").to(tl.float32)
    if HAS_DELTA:
        delta = tl.load(delta_ptr + row * delta_stride + column, mask=is_value, other=0.0).to(tl.float32)
        total = to_dtype(x + delta, dtype, TARGET)
        tl.store(residual, total, mask=is_value)
        x = total.to(tl.float32)
    mean_square = tl.sum(x * x) / WIDTH
    normed = to_dtype(x * tl.rsqrt(mean_square + eps) * (weight + 1.0), dtype, TARGET)
    if HAS_NORMED:
        tl.store(normed_ptr + row * normed_stride + column, normed, mask=is_value)
    values, scale = quantize_pieces(normed.to(tl.float32), GROUPS, TARGET)
    row_ptr = rows_ptr + row * rows_stride
    tl.store(row_ptr + column, values, mask=is_value)
    group = tl.arange(0, GROUPS)
    tl.store(row_ptr + WIDTH + group, scale, mask=group < WIDTH // GROUP)

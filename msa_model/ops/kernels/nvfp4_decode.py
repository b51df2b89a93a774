"""NVFP4 decoding inside kernels: one interface, one way for each target (facts M4 and D2).

A tile of N tokens is loaded as ``data`` uint8 [N, 64] and ``scale`` uint8 [N, 8] (the bytes of E4M3). It becomes two
tiles of [N, 64], ``first`` and ``second``, so that no value has to move to another register: which head dimension a
column holds is ``first_dims`` and ``second_dims``. A matrix product does not care about that order: load the other
operand by it, or store the result by it.

============ ================ ======================== ==========================================================
TARGET       decode_scaled    decode_unscaled          how
============ ================ ======================== ==========================================================
sm_90        float16, exact   float8e4nv, value / 64   bits moved in 32-bit words, scales by packed half products
sm_107       float16, exact   float16, value / 16,384  the same
sm_100, 103  float8e4nv       none                     QMUL4: four products in one instruction, rounded to E4M3
gfx950       float8e4nv       none                     table of 256 scales x 8 magnitudes, byte permute, sign bits
other        float16, exact   float8e4nv, value / 64   plain Triton operations, for the interpreter too
============ ================ ======================== ==========================================================

Results of ``decode_scaled`` are ``scaled_factor`` times too small, those of ``decode_unscaled`` ``unscaled_factor``
times and without their group's scale: multiply the product of a tile by the factor.
"""

import triton
import triton.language as tl

# Four bytes to the two values of each, as E4M3 times 2^-6: sign to bit 7, exponent and fraction to bits 4-2. Subnormals
# become subnormals, so every value is exact. Inputs and outputs are packed four to a register.
_E2M1_TO_E4M3 = tl.constexpr("""{
    .reg .b32 a, b;
    shl.b32 a, $2, 4;
    shl.b32 b, $2, 2;
    and.b32 b, b, 0x1C1C1C1C;
    lop3.b32 $0, a, 0x80808080, b, 0xEA;
    shr.u32 a, $2, 2;
    and.b32 a, a, 0x1C1C1C1C;
    lop3.b32 $1, $2, 0x80808080, a, 0xEA;
}""")

# Four bytes to halves times 2^-14: sign to bit 15, exponent and fraction to bits 11-9, subnormals included.
_E2M1_TO_F16 = tl.constexpr(
    """{
    .reg .b32 x, y, z;
    prmt.b32 x, DATA, 0, 0x1404;
    prmt.b32 y, DATA, 0, 0x3424;
    shl.b32 z, x, 1;
    and.b32 z, z, 0x0E000E00;
    shl.b32 $0, x, 4;
    lop3.b32 $0, $0, 0x80008000, z, 0xEA;
    shr.u32 z, x, 3;
    and.b32 z, z, 0x0E000E00;
    lop3.b32 $2, x, 0x80008000, z, 0xEA;
    shl.b32 z, y, 1;
    and.b32 z, z, 0x0E000E00;
    shl.b32 $1, y, 4;
    lop3.b32 $1, $1, 0x80008000, z, 0xEA;
    shr.u32 z, y, 3;
    and.b32 z, z, 0x0E000E00;
    lop3.b32 $3, y, 0x80008000, z, 0xEA;
}""".replace("DATA", "$4")
)
# Four bytes and the halves of their scales to products: to E4M3 first, whose conversion to halves is an instruction for
# two. 15 instructions for 8 values, where moving bits straight into halves takes 20.
_NVFP4_TO_F16 = tl.constexpr("""{
    .reg .b32 a, b;
    .reg .b16 l, h;
    shl.b32 a, $4, 4;
    shl.b32 b, $4, 2;
    and.b32 b, b, 0x1C1C1C1C;
    lop3.b32 a, a, 0x80808080, b, 0xEA;
    mov.b32 {l, h}, a;
    cvt.rn.f16x2.e4m3x2 $0, l;
    cvt.rn.f16x2.e4m3x2 $1, h;
    shr.u32 a, $4, 2;
    and.b32 a, a, 0x1C1C1C1C;
    lop3.b32 a, $4, 0x80808080, a, 0xEA;
    mov.b32 {l, h}, a;
    cvt.rn.f16x2.e4m3x2 $2, l;
    cvt.rn.f16x2.e4m3x2 $3, h;
    mul.rn.f16x2 $0, $0, $5;
    mul.rn.f16x2 $1, $1, $6;
    mul.rn.f16x2 $2, $2, $5;
    mul.rn.f16x2 $3, $3, $6;
}""")

# Four bytes and their scales, one byte each, to the products in E4M3. The four bytes must be neighbours in a token, so
# that one scale serves all eight values: `make aot` checks the layout that the compiler chose.
_NVFP4_TO_E4M3 = tl.constexpr("""{
    .reg .b16 l, h;
    mov.b32 {l, h}, $2;
    mul.rn.satfinite.e4m3x4.e2m1x4.e4m3x4 $0, l, $3;
    mul.rn.satfinite.e4m3x4.e2m1x4.e4m3x4 $1, h, $3;
}""")


# Four E4M3 bytes to float32; the compiler's own conversion takes the bytes apart and puts them together again.
_E4M3_TO_F32 = tl.constexpr("""{
    .reg .b16 l, h, a, b, c, d;
    .reg .b32 x, y;
    mov.b32 {l, h}, $4;
    cvt.rn.f16x2.e4m3x2 x, l;
    cvt.rn.f16x2.e4m3x2 y, h;
    mov.b32 {a, b}, x;
    mov.b32 {c, d}, y;
    cvt.f32.f16 $0, a;
    cvt.f32.f16 $1, b;
    cvt.f32.f16 $2, c;
    cvt.f32.f16 $3, d;
}""")

# The same with a scale for each byte, and results sorted into low and high nibbles: for any four bytes.
_NVFP4_BYTES_TO_E4M3 = tl.constexpr("""{
    .reg .b16 l, h;
    .reg .b32 s, a, b;
    mov.b32 {l, h}, $2;
    prmt.b32 s, $3, 0, 0x1100;
    mul.rn.satfinite.e4m3x4.e2m1x4.e4m3x4 a, l, s;
    prmt.b32 s, $3, 0, 0x3322;
    mul.rn.satfinite.e4m3x4.e2m1x4.e4m3x4 b, h, s;
    prmt.b32 $0, a, b, 0x6420;
    prmt.b32 $1, a, b, 0x7531;
}""")


@triton.jit
def first_dims(column, TARGET: tl.constexpr):
    """The head dimensions of the ``first`` tile's columns, from column numbers 0-63."""
    if TARGET == "sm_100" or TARGET == "sm_103":
        return column // 4 * 8 + column % 4
    return column * 2


@triton.jit
def second_dims(column, TARGET: tl.constexpr):
    """The head dimensions of the ``second`` tile's columns, from column numbers 0-63."""
    if TARGET == "sm_100" or TARGET == "sm_103":
        return column // 4 * 8 + column % 4 + 4
    return column * 2 + 1


@triton.jit
def scaled_factor(TARGET: tl.constexpr):
    """What a product with tiles of ``decode_scaled`` has to be multiplied by."""
    if TARGET == "sm_100" or TARGET == "sm_103" or TARGET == "gfx950":
        return 1.0
    return 128.0


@triton.jit
def unscaled_factor(TARGET: tl.constexpr):
    """What a product with tiles of ``decode_unscaled`` has to be multiplied by, besides the group's scale."""
    if TARGET == "sm_107":
        return 16384.0
    return 64.0


@triton.jit
def scale_to_f32(scale, TARGET: tl.constexpr, IS_ROW_IN_THREAD: tl.constexpr = False):
    """float32 values of E4M3 bytes that are never negative; NaN (a stale byte) is NaN or 480.

    ``IS_ROW_IN_THREAD``: a thread will hold whole rows of ``scale``, so that four of a row can be taken at once.
    """
    if TARGET == "other":
        # The exponent's bias differs by 120.
        return (scale.to(tl.int32) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36
    elif TARGET == "gfx950" or not IS_ROW_IN_THREAD:
        return scale.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        return tl.inline_asm_elementwise(_E4M3_TO_F32, "=r,=r,=r,=r,r", [scale], dtype=tl.float32, is_pure=True, pack=4)


@triton.jit
def _per_column(scale, N: tl.constexpr):
    """[N, 8] values of groups to [N, 64] values of their data bytes: a copy of registers, no arithmetic."""
    return tl.reshape(tl.broadcast_to(scale[:, :, None], (N, 8, 8)), (N, 64))


@triton.jit
def decode_scaled(data, scale, table_ptr, TARGET: tl.constexpr):
    """``data`` uint8 [N, 64] and ``scale`` uint8 [N, 8] to two tiles [N, 64] of value x scale / ``scaled_factor``.

    ``table_ptr`` is that of ``e4m3_products`` on gfx950 and not read elsewhere.
    """
    if TARGET == "sm_100" or TARGET == "sm_103":
        return tl.inline_asm_elementwise(
            _NVFP4_TO_E4M3,
            "=r,=r,r,r",
            [data, _per_column(scale, data.shape[0])],
            dtype=(tl.float8e4nv, tl.float8e4nv),
            is_pure=True,
            pack=4,
        )
    elif TARGET == "gfx950":
        return _by_table(data, scale, table_ptr, data.shape[0])
    else:
        # Bits of an E4M3 number at the place of a half's are the number times 2^-8. Values come as many times too small
        # as their format has a smaller bias: 2^-14 in halves, 2^-6 in E4M3.
        half = (scale.to(tl.uint16) << 7).to(tl.float16, bitcast=True)
        LIFT: tl.constexpr = 32768.0 if TARGET == "other" else 128.0
        half = _per_column(half * tl.full((), LIFT, tl.float16), data.shape[0])
        if TARGET == "other":
            return _nibble_to_f16(data & 15) * half, _nibble_to_f16(data >> 4) * half
        else:
            return tl.inline_asm_elementwise(
                _NVFP4_TO_F16,
                "=&r,=&r,=&r,=&r,r,r,r",
                [data, half],
                dtype=(tl.float16, tl.float16),
                is_pure=True,
                pack=4,
            )


@triton.jit
def decode_bytes(data, scale, table_ptr, TARGET: tl.constexpr):
    """``decode_scaled`` for a tile whose registers may hold bytes of several tokens, as an operand's summed rows do.

    The tiles hold the even and the odd head dimensions on every target.
    """
    if TARGET == "sm_100" or TARGET == "sm_103":
        return tl.inline_asm_elementwise(
            _NVFP4_BYTES_TO_E4M3,
            "=r,=r,r,r",
            [data, _per_column(scale, data.shape[0])],
            dtype=(tl.float8e4nv, tl.float8e4nv),
            is_pure=True,
            pack=4,
        )
    else:
        return decode_scaled(data, scale, table_ptr, TARGET)


@triton.jit
def decode_unscaled(data, TARGET: tl.constexpr):
    """``data`` uint8 [N, 64] to two tiles [N, 64] of value / ``unscaled_factor``, exact, without the scales."""
    tl.static_assert(TARGET == "sm_90" or TARGET == "sm_107" or TARGET == "other")
    if TARGET == "sm_107":
        return tl.inline_asm_elementwise(
            _E2M1_TO_F16, "=&r,=&r,=&r,=&r,r", [data], dtype=(tl.float16, tl.float16), is_pure=True, pack=4
        )
    elif TARGET == "sm_90":
        return tl.inline_asm_elementwise(
            _E2M1_TO_E4M3, "=&r,=&r,r", [data], dtype=(tl.float8e4nv, tl.float8e4nv), is_pure=True, pack=4
        )
    else:
        return _nibble_to_e4m3(data & 15), _nibble_to_e4m3(data >> 4)


@triton.jit
def _by_table(data, scale, table_ptr, N: tl.constexpr):
    """Words of four bytes, since the compiler has no registers of four bytes for assembly on AMD GPUs."""
    row = table_ptr + scale.to(tl.int32) * 2
    low_row = tl.reshape(tl.broadcast_to(tl.load(row)[:, :, None], (N, 8, 2)), (N, 16))
    high_row = tl.reshape(tl.broadcast_to(tl.load(row + 1)[:, :, None], (N, 8, 2)), (N, 16))
    word = _to_words(data, N)
    first = _permute_bytes(high_row, low_row, word & 0x07070707) ^ ((word << 4) & 0x80808080)
    second = _permute_bytes(high_row, low_row, (word >> 4) & 0x07070707) ^ (word & 0x80808080)
    return _to_bytes(first, N).to(tl.float8e4nv, bitcast=True), _to_bytes(second, N).to(tl.float8e4nv, bitcast=True)


@triton.jit
def _permute_bytes(high, low, selector):
    """Each byte 0-7 of ``selector`` replaced by that byte of the eight in ``low`` and ``high``."""
    return tl.inline_asm_elementwise(
        "v_perm_b32 $0, $1, $2, $3", "=v,v,v,v", [high, low, selector], dtype=tl.uint32, is_pure=True, pack=1
    )


@triton.jit
def _to_words(data, N: tl.constexpr):
    """uint8 [N, 64] to uint32 [N, 16], first byte lowest; the same registers if a thread holds four neighbours."""
    even, odd = tl.split(tl.reshape(data.to(tl.uint32), (N, 16, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first | (second << 8) | (third << 16) | (fourth << 24)


@triton.jit
def _to_bytes(word, N: tl.constexpr):
    """uint32 [N, 16] to uint8 [N, 64], the inverse of ``_to_words``."""
    even = tl.join(word & 255, (word >> 16) & 255)
    odd = tl.join((word >> 8) & 255, word >> 24)
    return tl.reshape(tl.join(even, odd), (N, 64)).to(tl.uint8)


@triton.jit
def _nibble_to_f16(nibble):
    bits = ((nibble.to(tl.uint16) & 8) << 12) | ((nibble.to(tl.uint16) & 7) << 9)
    return bits.to(tl.float16, bitcast=True)


@triton.jit
def _nibble_to_e4m3(nibble):
    bits = ((nibble & 8) << 4) | ((nibble & 7) << 2)
    return bits.to(tl.float8e4nv, bitcast=True)

"""NVFP4 quantisation into the paged cache and back; the byte layout is that of ``msa_model.pages``."""

import triton
import triton.language as tl

from msa_model.ops.kernels.e4m3 import e4m3_bits, round_to_e4m3
from msa_model.ops.kernels.nvfp4_decode import decode_scaled

BLOCK = tl.constexpr(128)
SLOT_BYTES = tl.constexpr(9216)
SCALES_OFFSET = tl.constexpr(8192)


@triton.jit
def quantize_rows(values, ROWS: tl.constexpr):
    """float32 [ROWS, 128] to data uint8 [ROWS, 64] and scale bytes uint8 [ROWS, 8], as the twin rounds them."""
    groups = tl.reshape(values, (ROWS, 8, 16))
    largest = tl.max(tl.abs(groups), axis=2)
    # A plain division is an approximation on GPUs and moves scales.
    scale = round_to_e4m3(tl.div_rn(largest, tl.full((ROWS, 8), 6.0, tl.float32)))
    divisor = tl.where(scale > 0.0, scale, 1.0)
    scaled = tl.div_rn(groups, tl.broadcast_to(divisor[:, :, None], (ROWS, 8, 16)))
    scaled = tl.where((scale > 0.0)[:, :, None], scaled, 0.0)
    size = tl.abs(scaled)
    # Midpoints between neighbouring magnitudes; a tie goes to the even code.
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    code += (size > 5.0).to(tl.int32)
    code |= (scaled < 0.0).to(tl.int32) << 3
    even, odd = tl.split(tl.reshape(code, (ROWS, 64, 2)))
    return (even | (odd << 4)).to(tl.uint8), e4m3_bits(scale)


@triton.jit
def pack_kernel(
    values_ptr,  # [T, H, 128]
    pool_ptr,
    slot_mapping_ptr,  # [T]
    head_slots_ptr,  # [H]
    num_rows,  # T x H
    num_heads,
    token_stride,
    head_stride,
    block_stride,
    ROWS: tl.constexpr,
):
    """Quantise ROWS head vectors and store them at their tokens; a negative token stores nothing."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    token = row // num_heads
    head = row % num_heads
    dim = tl.arange(0, 128)
    from_ptr = values_ptr + token.to(tl.int64) * token_stride + head * head_stride
    values = tl.load(from_ptr[:, None] + dim[None, :], mask=is_row[:, None], other=0.0).to(tl.float32)
    data, scale = quantize_rows(values, ROWS)
    place = tl.load(slot_mapping_ptr + token, mask=is_row, other=-1).to(tl.int64)
    head_slot = tl.load(head_slots_ptr + head, mask=is_row, other=0).to(tl.int64)
    slot_ptr = pool_ptr + place // BLOCK * block_stride + head_slot * SLOT_BYTES
    offset = place % BLOCK
    is_stored = (place >= 0)[:, None]
    tl.store((slot_ptr + offset * 64)[:, None] + tl.arange(0, 64)[None, :], data, mask=is_stored)
    tl.store((slot_ptr + SCALES_OFFSET + offset * 8)[:, None] + tl.arange(0, 8)[None, :], scale, mask=is_stored)


@triton.jit
def unpack_kernel(
    pool_ptr,
    blocks_ptr,  # [B]
    head_slots_ptr,  # [H]
    out_ptr,  # [H, B, 128, 128]
    num_tokens,
    block_stride,
    ROWS: tl.constexpr,
):
    """Decode ROWS tokens of one block and head, exactly; zero from token ``num_tokens`` of all blocks on."""
    piece = tl.program_id(0)
    number = tl.program_id(1)
    head = tl.program_id(2)
    block = tl.load(blocks_ptr + number).to(tl.int64)
    slot_ptr = pool_ptr + block * block_stride + tl.load(head_slots_ptr + head).to(tl.int64) * SLOT_BYTES
    token = piece * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, 64)
    data = tl.load((slot_ptr + token * 64)[:, None] + column[None, :])
    scale = tl.load((slot_ptr + SCALES_OFFSET + token * 8)[:, None] + tl.arange(0, 8)[None, :])
    # The exact way of decoding on every target: 128 is what its results are too small by.
    even, odd = decode_scaled(data, scale, pool_ptr, "other")
    values = tl.reshape(tl.join(even, odd), (ROWS, 128)).to(tl.float32) * 128.0
    values = tl.where((number * BLOCK + token < num_tokens)[:, None], values, 0.0)
    row_ptr = out_ptr + ((head.to(tl.int64) * tl.num_programs(1) + number) * BLOCK + token) * 128
    tl.store(row_ptr[:, None] + tl.arange(0, 128)[None, :], values.to(out_ptr.dtype.element_ty))

"""Decoding inside kernels gives every number of the format, and rounding to E4M3 is torch's."""

import torch
import triton
import triton.language as tl

from msa_model.ops.kernels.e4m3 import e4m3_bits, round_to_e4m3
from msa_model.ops.kernels.nvfp4_decode import (
    decode_scaled,
    decode_unscaled,
    first_dims,
    scale_to_f32,
    scaled_factor,
    second_dims,
    unscaled_factor,
)
from msa_model.reference.nvfp4 import dequantize


@triton.jit
def decode_kernel(data_ptr, scale_ptr, scaled_ptr, unscaled_ptr, scale_out_ptr, TARGET: tl.constexpr):  # type: ignore[no-untyped-def]
    token, column, group = tl.arange(0, 128)[:, None], tl.arange(0, 64)[None, :], tl.arange(0, 8)[None, :]
    data = tl.load(data_ptr + token * 64 + column)
    scale = tl.load(scale_ptr + token * 8 + group)
    first, second = decode_scaled(data, scale, data_ptr, TARGET)
    tl.store(scaled_ptr + token * 128 + first_dims(column, TARGET), first.to(tl.float32) * scaled_factor(TARGET))
    tl.store(scaled_ptr + token * 128 + second_dims(column, TARGET), second.to(tl.float32) * scaled_factor(TARGET))
    first, second = decode_unscaled(data, TARGET)
    tl.store(unscaled_ptr + token * 128 + first_dims(column, TARGET), first.to(tl.float32) * unscaled_factor(TARGET))
    tl.store(unscaled_ptr + token * 128 + second_dims(column, TARGET), second.to(tl.float32) * unscaled_factor(TARGET))
    tl.store(scale_out_ptr + token * 8 + group, scale_to_f32(scale, TARGET))


@triton.jit
def round_kernel(x_ptr, rounded_ptr, bits_ptr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, SIZE)
    rounded = round_to_e4m3(tl.load(x_ptr + place))
    tl.store(rounded_ptr + place, rounded)
    tl.store(bits_ptr + place, e4m3_bits(tl.abs(rounded)))


def test_every_code_at_every_scale_decodes_exactly() -> None:
    data = torch.arange(128 * 64).remainder(256).to(torch.uint8).view(128, 64)
    scale = torch.arange(1024).remainder(127).to(torch.uint8).view(128, 8)
    scaled, unscaled, scales = torch.empty(128, 128), torch.empty(128, 128), torch.empty(128, 8)
    decode_kernel[(1,)](data, scale, scaled, unscaled, scales, "other")
    one = torch.ones(128, 8).to(torch.float8_e4m3fn)
    assert torch.equal(scaled, dequantize(data, scale))
    assert torch.equal(unscaled, dequantize(data, one))
    assert torch.equal(scales, scale.view(torch.float8_e4m3fn).float())


def test_rounding_is_to_the_nearest_number_ties_to_even_and_saturates() -> None:
    numbers = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    midpoints = (numbers[1:] + numbers[:-1]) / 2
    x = torch.cat([numbers, midpoints, midpoints * 1.001, midpoints * 0.999, torch.tensor([449.0, 1e9, 1e-9])])
    x = torch.cat([x, -x])
    x = torch.cat([x, torch.randn(1024 - len(x)) * 100])
    rounded, bits = torch.empty(1024), torch.empty(1024, dtype=torch.uint8)
    round_kernel[(1,)](x, rounded, bits, 1024)
    expected = x.clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(rounded, expected.float())
    assert torch.equal(bits, expected.view(torch.uint8) & 0x7F)

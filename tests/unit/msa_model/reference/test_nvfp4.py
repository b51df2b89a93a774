"""NVFP4 in torch rounds to the nearest number of the format, and decodes every code."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msa_model.reference.nvfp4 import GROUP, _byte_values, dequantize, nvfp4_bytes, quantize, round_to_e4m3

MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
# By the definition of E4M3: exponent 1-15 with bias 7, three fraction bits, 0x7F is NaN; exponent 0 is subnormal.
SCALES = [(b & 7) / 8 * 2.0**-6 if b < 8 else (1 + (b & 7) / 8) * 2.0 ** ((b >> 3) - 7) for b in range(127)]


def nearest_code(value: float, scale: float) -> int:
    """The code of the number nearest to value, by comparing with all of them; of two equally near the even code."""
    if scale == 0:
        return 0
    magnitude = abs(value) / scale
    code = min(range(8), key=lambda c: (abs(magnitude - MAGNITUDES[c]), c % 2))
    return code | 8 if value < 0 else code


def unpack(data: torch.Tensor) -> list[int]:
    return [nibble for byte in data.flatten().tolist() for nibble in (byte & 15, byte >> 4)]


def test_a_head_vector_takes_72_bytes() -> None:
    data, scale = quantize(torch.randn(3, 128))
    assert nvfp4_bytes(128) == data.shape[-1] + scale.shape[-1] == 72


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_decoding_does_not_depend_on_what_floats_torch_makes_by_default(dtype: torch.dtype) -> None:
    """vLLM makes that the model's while it loads weights."""
    data, scale = quantize(torch.randn(2, 32))
    expected = dequantize(data, scale)
    before = torch.get_default_dtype()
    _byte_values.cache_clear()
    torch.set_default_dtype(dtype)
    try:
        decoded = dequantize(data, scale)
    finally:
        torch.set_default_dtype(before)
        _byte_values.cache_clear()
    assert decoded.dtype == torch.float32
    assert torch.equal(decoded, expected)


@pytest.mark.parametrize("scale_byte", range(127))
def test_every_code_decodes_to_its_number_at_every_scale(scale_byte: int) -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    data = codes[0::2] | (codes[1::2] << 4)
    decoded = dequantize(data, torch.tensor([scale_byte], dtype=torch.uint8))
    expected = [MAGNITUDES[c % 8] * SCALES[scale_byte] * (-1 if c >= 8 else 1) for c in range(16)]
    assert decoded.tolist() == expected


@pytest.mark.parametrize("scale_byte", [8, 56, 57, 63, 100, 126])
def test_numbers_of_the_format_survive_a_round_trip(scale_byte: int) -> None:
    numbers = torch.tensor([m * SCALES[scale_byte] for m in MAGNITUDES] * 2)
    assert torch.equal(dequantize(*quantize(numbers)), numbers)
    assert torch.equal(dequantize(*quantize(-numbers)), -numbers)


@given(
    values=st.lists(
        st.floats(min_value=-5000, max_value=5000, width=32, allow_subnormal=False), min_size=GROUP, max_size=GROUP
    )
)
@settings(max_examples=300, deadline=None)
def test_each_value_rounds_to_the_nearest_number_at_the_group_scale(values: list[float]) -> None:
    data, scale = quantize(torch.tensor(values))
    group_scale = float(scale.float())
    ideal = min(float(torch.tensor(max(map(abs, values))) / torch.tensor(6.0)), 448.0)
    assert min(SCALES, key=lambda s: abs(s - ideal)) == pytest.approx(group_scale, rel=0.07, abs=2**-10)
    scaled = torch.tensor(values) / group_scale if group_scale else torch.zeros(GROUP)
    assert unpack(data) == [nearest_code(float(x), 1.0 if group_scale else 0.0) for x in scaled]


def test_midpoints_go_to_the_even_code() -> None:
    midpoints = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    group = torch.tensor([*midpoints, 6.0, *(-m for m in midpoints), 6.0])
    data, scale = quantize(group)
    assert float(scale.float()) == 1.0
    assert unpack(data) == [0, 2, 2, 4, 4, 6, 6, 7, 8, 10, 10, 12, 12, 14, 14, 7]


def test_values_beyond_the_largest_number_saturate() -> None:
    decoded = dequantize(*quantize(torch.tensor([1e6, -1e6, *[1.0] * 14])))
    assert decoded[:2].tolist() == [6.0 * 448.0, -6.0 * 448.0]
    assert torch.isfinite(decoded).all()


def test_a_group_too_small_for_a_scale_becomes_zero() -> None:
    for group in (torch.zeros(GROUP), torch.full((GROUP,), 1e-9)):
        data, scale = quantize(group)
        assert float(scale.float()) == 0.0
        assert not data.any()
        assert not dequantize(data, scale).any()


def test_groups_of_one_vector_have_scales_of_their_own() -> None:
    vector = torch.cat([torch.full((GROUP,), 1.0), torch.full((GROUP,), 100.0)])
    decoded = dequantize(*quantize(vector))
    assert torch.allclose(decoded, vector, rtol=0.07)


def test_half_precision_input_is_rounded_from_its_own_value() -> None:
    x = torch.randn(4, 64).bfloat16()
    for one, other in zip(quantize(x), quantize(x.float()), strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_rounding_to_e4m3_saturates_and_keeps_nan() -> None:
    x = torch.tensor([1e9, -1e9, 17.1, 2.0**-10, float("nan")])
    assert round_to_e4m3(x)[:4].tolist() == [448.0, -448.0, 18.0, 0.0]
    assert round_to_e4m3(x)[4].isnan()

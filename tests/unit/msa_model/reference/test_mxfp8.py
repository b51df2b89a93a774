"""MXFP8 rounds to the nearest number under the smallest scale that saturates nothing."""

import itertools
import math

import pytest
import torch

from msa_model.reference.mxfp8 import E4M3_MAX, dequantize, quantize

E4M3 = sorted({float(v) for v in torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float() if v == v})


def nearest(value: float) -> float:
    """By search; at the middle of two the one with an even code, which is every second of the sorted positives."""
    positives = [number for number in E4M3 if number >= 0]
    below = max(number for number in positives if number <= abs(value))
    above = min((number for number in positives if number >= abs(value)), default=below)
    low, high = abs(value) - below, above - abs(value)
    even = below if positives.index(below) % 2 == 0 else above
    return math.copysign(even if low == high else below if low < high else above, value)


@pytest.mark.parametrize("largest", [448.0, 448.5, 3.5, 1e-3, 7e4, 2.0**-120])
def test_a_group_has_the_smallest_scale_that_holds_its_largest_value(largest: float) -> None:
    group = torch.linspace(-1, 1, 32) * largest
    _, scale = quantize(group)
    power = 2.0 ** (int(scale[0]) - 127)
    assert largest / power <= E4M3_MAX
    assert largest / (power / 2) > E4M3_MAX or int(scale[0]) == 0


def test_values_round_to_the_nearest_and_ties_to_the_even_code() -> None:
    points = [number for number in E4M3 if 0 <= number <= E4M3_MAX]
    middles = [(a + b) / 2 for a, b in itertools.pairwise(points)]
    values = [448.0, *middles][: 32 * (len(middles) // 32)]
    for group in zip(*[iter(values)] * 32, strict=True):
        x = torch.tensor(group)
        x[0] = E4M3_MAX  # scale 1
        codes, scale = quantize(x)
        assert int(scale) == 127
        assert codes.float().tolist() == [nearest(float(value)) for value in x]


def test_zero_is_exact_and_decoding_is_a_product() -> None:
    x = torch.zeros(2, 64)
    x[1, 40] = -3.25
    assert torch.equal(dequantize(*quantize(x)), x)
    values, scale = torch.full((1, 32), 1.75).to(torch.float8_e4m3fn), torch.tensor([[130]], dtype=torch.uint8)
    assert torch.equal(dequantize(values, scale), torch.full((1, 32), 14.0))

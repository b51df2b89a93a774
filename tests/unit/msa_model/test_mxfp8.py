"""MXFP8 rounds to the nearest number under the smallest scale that saturates nothing; layers multiply what it means."""

import itertools
import math

import pytest
import torch
from torch import nn

from msa_model.mxfp8 import E4M3_MAX, TorchMxFp8LinearMethod, dequantize, quantize

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


@pytest.mark.usefixtures("one_rank")
def test_a_layer_multiplies_by_what_its_shards_mean() -> None:
    torch.manual_seed(0)
    method, layer = TorchMxFp8LinearMethod(), nn.Module()
    method.create_weights(layer, 64, [8, 24], 64, 32, torch.float32, weight_loader=lambda *_: None)
    assert {name: (tuple(p.shape), p.dtype) for name, p in layer.named_parameters()} == {
        "weight": ((32, 64), torch.float8_e4m3fn),
        "weight_scale": ((32, 2), torch.uint8),
    }
    values, scale = quantize(torch.randn(32, 64))
    layer.weight.data.copy_(values)
    layer.weight_scale.data.copy_(scale)
    method.process_weights_after_loading(layer)
    x, bias = torch.randn(5, 64), torch.randn(32)
    expected = x.double() @ dequantize(values, scale).double().T + bias
    torch.testing.assert_close(method.apply(layer, x, bias).double(), expected, rtol=1e-5, atol=1e-5)


def test_a_rank_that_would_cut_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="48 inputs"):
        TorchMxFp8LinearMethod().create_weights(
            nn.Module(), 48, [8], 96, 8, torch.float32, weight_loader=lambda *_: None
        )

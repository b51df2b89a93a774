"""Layers stored in MXFP8 multiply by what their weights mean."""

import pytest
import torch
from torch import nn

from msa_model.linear import TorchMxFp8LinearMethod
from msa_model.reference.mxfp8 import dequantize, quantize


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

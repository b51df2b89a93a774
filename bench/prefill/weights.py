"""Random weights of one rank, drawn on its device: nobody can wait for a checkpoint of true sizes."""

import math
import zlib

import torch
from torch import nn

from msa_model.reference.mxfp8 import E8M0_BIAS

# Root mean squares: of E2M1's 16 values, all as likely; and of E4M3's 9 values from 0.5 to 1.0, whose bytes these are.
E2M1_RMS, E4M3_RMS = 2.926, 0.767
FIRST_E4M3, LAST_E4M3 = 0x30, 0x38
# A branch adds to the residual stream what is small beside it, as in a trained model. Attention has to be seen in it:
# the mean of some 2,000 random values is small by itself.
OUTPUT_GAIN, ATTENTION_GAIN = 0.3, 1.0
# Rows that are drawn at once in float32.
DRAWN_ROWS = 4096


def fill(model: nn.Module, *, tp_rank: int, tp_size: int) -> None:
    """Fill every parameter by its name: what ranks share is alike on them, what is cut is a rank's own.

    A projection's outputs are of its inputs' size, times a gain where a branch ends. o_proj is the same matrix
    whether a rank holds the columns of its heads or all of them.
    """
    for name, module in model.named_modules():
        for short, parameter in module.named_parameters(recurse=False):
            data = parameter.data
            parts, first = 1, None
            if name.endswith("o_proj") and data.dim() == 2:
                parts = tp_size if _holds_all_inputs(module) else 1
                first = 0 if parts > 1 else tp_rank
            elif data.dim() > 1 and not name.endswith("gate"):
                first = tp_rank
            width = data.shape[-1] // parts
            for number in range(parts):
                owner = None if first is None else first + number
                generator = torch.Generator(data.device).manual_seed(zlib.crc32(f"{name}.{short} {owner}".encode()))
                part = data[..., number * width : (number + 1) * width] if parts > 1 else data
                _draw(part, short, _std(name, module, short, tp_size), generator)


def _holds_all_inputs(module: nn.Module) -> bool:
    return getattr(module, "input_size_per_partition", module.input_size) == module.input_size


def _std(name: str, module: nn.Module, short: str, tp_size: int) -> float:
    """Of the weights that the parameter belongs to."""
    if hasattr(module, "w13_weight"):
        is_last = short.startswith("w2")
        inputs = module.w2_weight.shape[-1] * 2 * tp_size if is_last else module.w13_weight.shape[-1] * 2
    else:
        is_last = name.endswith(("o_proj", "down_proj"))
        inputs = getattr(module, "input_size", None) or module._parameters[short].shape[-1]
    gain = ATTENTION_GAIN if name.endswith("o_proj") else OUTPUT_GAIN if is_last else 1.0
    return float(inputs**-0.5 * gain)


def _draw(data: torch.Tensor, short: str, std: float, generator: torch.Generator) -> None:
    """In place, by what ModelOpt stores under a parameter's name."""
    is_scale = short.endswith("weight_scale")
    if short.endswith("weight_scale_2"):
        data.fill_(std / (E2M1_RMS * E4M3_RMS))
    elif short.endswith("input_scale"):
        data.fill_(1.0)
    elif is_scale and data.dtype == torch.uint8:
        data.fill_(E8M0_BIAS + round(math.log2(std)))
    elif is_scale:
        shape, device = data.shape, data.device
        drawn = torch.randint(FIRST_E4M3, LAST_E4M3 + 1, shape, dtype=torch.uint8, device=device, generator=generator)
        data.view(torch.uint8).copy_(drawn)
    elif data.dtype == torch.uint8:
        data.random_(0, 256, generator=generator)
    elif data.dtype == torch.float8_e4m3fn:
        for rows in data.split(DRAWN_ROWS):
            rows.copy_(torch.empty(rows.shape, device=data.device).normal_(generator=generator))
    elif data.dim() < 2:
        data.normal_(0, 0.1, generator=generator)
    else:
        data.normal_(0, std, generator=generator)

"""NVFP4 into and out of the paged cache: checks, tile choice, launch. The twin is ``msa_model.reference.nvfp4``."""

import functools

import torch

from msa_model.reference.nvfp4 import E2M1_MAGNITUDES, E4M3_MAX


@functools.lru_cache
def e4m3_products(device: torch.device) -> torch.Tensor:
    """uint32 [256, 2] on ``device``: for each E4M3 scale its products with the eight magnitudes, rounded to E4M3.

    Byte i of a row's eight is magnitude i times the scale, saturating at 448 (fact D2, CDNA4). Cached per device, as
    a copy from the host is illegal while a CUDA graph is captured: call it before.
    """
    scale = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    products = scale[:, None] * torch.tensor(E2M1_MAGNITUDES)
    rounded = products.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return rounded.view(torch.uint8).view(torch.uint32).to(device)

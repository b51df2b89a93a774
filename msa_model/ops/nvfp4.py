"""NVFP4 into and out of the paged cache: checks, tile choice, launch. The twin is ``msa_model.reference.nvfp4``."""

import functools

import torch
import triton

from msa_model.config import BLOCK_SIZE, HEAD_DIM
from msa_model.ops.kernels.nvfp4 import pack_kernel, unpack_kernel
from msa_model.ops.pool import check_pool
from msa_model.reference.nvfp4 import E2M1_MAGNITUDES, E4M3_MAX

# Head vectors of a program: 16 values for each of its 128 threads.
PACK_ROWS, UNPACK_ROWS = 16, 32


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


def pack(values: torch.Tensor, pool: torch.Tensor, head_slots: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Quantise ``values`` [T, H, 128] of any float dtype and store them in ``pool``, with the bytes of the twin.

    NaN alone differs: the twin makes a group that has one NaN as a whole, a kernel takes it for a zero.

    Head h of token t goes to slot ``head_slots[h]`` (int [H]) of block ``slot_mapping[t] // 128`` (int [T]), at offset
    ``slot_mapping[t] % 128``; where the mapping is negative (padding), nowhere. ``pool`` uint8 [num_blocks, num_slots,
    128, 72]. Raises ValueError for other shapes. Two tokens must not go to one place.
    """
    check_pool(pool, 0)
    if values.dim() != 3 or values.shape[2] != HEAD_DIM or values.stride(2) != 1:
        raise ValueError(f"values must be [T, H, {HEAD_DIM}] with contiguous heads, not {tuple(values.shape)}")
    tokens, heads, _ = values.shape
    if slot_mapping.shape != (tokens,) or head_slots.shape != (heads,):
        raise ValueError(
            f"{tokens} tokens of {heads} heads need as many places and slots, "
            f"not {tuple(slot_mapping.shape)} and {tuple(head_slots.shape)}"
        )
    if not values.numel():
        return
    pack_kernel[(triton.cdiv(tokens * heads, PACK_ROWS),)](
        values,
        pool,
        slot_mapping,
        head_slots,
        tokens * heads,
        heads,
        values.stride(0),
        values.stride(1),
        pool.stride(0),
        ROWS=PACK_ROWS,
    )


def unpack(
    pool: torch.Tensor,
    blocks: torch.Tensor,
    head_slots: torch.Tensor,
    *,
    num_tokens: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """[H, B, 128, 128] of ``dtype``: the tokens of ``blocks`` int [B] in ``head_slots`` int [H], decoded exactly.

    Zero from token ``num_tokens`` on, counted over all blocks; without it stale tokens come along. Raises ValueError
    for another pool.
    """
    check_pool(pool, 0)
    count, heads = blocks.shape[0], head_slots.shape[0]
    out = torch.empty(heads, count, BLOCK_SIZE, HEAD_DIM, dtype=dtype, device=pool.device)
    if out.numel():
        unpack_kernel[(BLOCK_SIZE // UNPACK_ROWS, count, heads)](
            pool,
            blocks,
            head_slots,
            out,
            count * BLOCK_SIZE if num_tokens is None else num_tokens,
            pool.stride(0),
            ROWS=UNPACK_ROWS,
        )
    return out

"""The kernels of MXFP8 rows: choice of tiles and launch. Arguments are those of the twin, checked by ``ops.mxfp8``."""

import torch
import triton

from msa_model.ops.kernels.mxfp8 import add_rms_norm_encode_kernel, decode_kernel, encode_kernel
from msa_model.ops.target import target_of
from msa_model.quant_scheme import MXFP8_GROUP

# Groups of a program that counts them through all rows: 4,096 values, 32 for each of its threads (16 on AMD GPUs).
TILE_GROUPS, TILE_WARPS = 128, 4


def norm_tile(width: int) -> tuple[int, int]:
    """(groups, warps) of a program that holds a whole row of ``width`` values.

    Up to 64 values for each thread: more spill, fewer leave more of the work to finding sums and scales.
    """
    groups = triton.next_power_of_2(width // MXFP8_GROUP)
    return groups, max(1, min(4, groups // 32), groups // 64)


def encode(x: torch.Tensor, rows: torch.Tensor) -> None:
    """As the twin."""
    num_groups, width = x.numel() // MXFP8_GROUP, x.shape[1]
    encode_kernel[(triton.cdiv(num_groups, TILE_GROUPS),)](
        x,
        rows,
        num_groups,
        x.stride(0),
        rows.stride(0),
        WIDTH=width,
        GROUPS=TILE_GROUPS,
        TARGET=target_of(x.device).name,
        num_warps=TILE_WARPS,
    )


def decode(rows: torch.Tensor, out: torch.Tensor) -> None:
    """As the twin."""
    num_groups, width = out.numel() // MXFP8_GROUP, out.shape[1]
    decode_kernel[(triton.cdiv(num_groups, TILE_GROUPS),)](
        rows,
        out,
        num_groups,
        rows.stride(0),
        out.stride(0),
        WIDTH=width,
        GROUPS=TILE_GROUPS,
        TARGET=target_of(out.device).name,
        num_warps=TILE_WARPS,
    )


def add_rms_norm_encode(
    residual: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    rows: torch.Tensor,
    normed: torch.Tensor | None,
) -> None:
    """As the twin, but for the order of a sum and the last bits of an inverse root."""
    groups, warps = norm_tile(residual.shape[1])
    # Some tensor has to stand for one that is absent; it is not touched.
    added, seen = residual if delta is None else delta, residual if normed is None else normed
    add_rms_norm_encode_kernel[(residual.shape[0],)](
        residual,
        added,
        weight,
        rows,
        seen,
        residual.stride(0),
        added.stride(0),
        rows.stride(0),
        seen.stride(0),
        eps,
        WIDTH=residual.shape[1],
        GROUPS=groups,
        HAS_DELTA=delta is not None,
        HAS_NORMED=normed is not None,
        TARGET=target_of(residual.device).name,
        num_warps=warps,
    )

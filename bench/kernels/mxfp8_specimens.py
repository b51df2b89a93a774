"""The kernels of MXFP8 rows, as they are compiled ahead of time: the model's widths, in bfloat16."""

from collections.abc import Iterator
from typing import Any

from bench.kernels.specimens import Specimen
from msa_model.ops.kernels.mxfp8 import add_rms_norm_encode_kernel, decode_kernel, encode_kernel
from msa_model.ops.mxfp8_launch import TILE_GROUPS, TILE_WARPS, norm_tile
from msa_model.ops.target import Target
from msa_model.quant_scheme import MXFP8_GROUP

HIDDEN, OWN_HEADS = 6144, 2048  # fact M1; heads of one rank of TP4
_ACTIVATIONS = ("x", "out", "residual", "delta", "weight", "normed")
_TYPES = {
    **{f"{name}_ptr": "*bf16:16" for name in _ACTIVATIONS},
    **{f"{name}_stride": "i32:16" for name in (*_ACTIVATIONS, "rows")},
    "rows_ptr": "*u8:16",
    "num_groups": "i32:16",
    "eps": "fp32",
}


def specimens(target: Target) -> Iterator[Specimen]:
    """Encoding, decoding, and the fused norm with and without what a router reads."""
    tile = {"WIDTH": HIDDEN, "GROUPS": TILE_GROUPS, "TARGET": target.name}
    values = TILE_GROUPS * MXFP8_GROUP
    yield _specimen("MXFP8 rows, encode", encode_kernel, tile, TILE_WARPS, values)
    yield _specimen("MXFP8 rows, decode", decode_kernel, tile, TILE_WARPS, values)
    for width, has_normed in ((HIDDEN, False), (HIDDEN, True), (OWN_HEADS, False)):
        groups, warps = norm_tile(width)
        constants = {
            "WIDTH": width,
            "GROUPS": groups,
            "HAS_DELTA": True,
            "HAS_NORMED": has_normed,
            "TARGET": target.name,
        }
        name = f"MXFP8 rows, norm of {width}{', kept' if has_normed else ''}"
        yield _specimen(name, add_rms_norm_encode_kernel, constants, warps, width)


def _specimen(name: str, kernel: Any, constants: dict[str, Any], num_warps: int, values: int) -> Specimen:
    types = {argument: _TYPES[argument] for argument in kernel.arg_names if argument not in constants}
    return Specimen(
        name=name,
        kernel=kernel,
        types=types,
        constants=constants,
        num_warps=num_warps,
        loop_values=values,
        decodes_nvfp4=False,
    )

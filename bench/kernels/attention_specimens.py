"""The kernels of sparse attention, as they are compiled ahead of time."""

from collections.abc import Iterator
from typing import Any

from bench.kernels.specimens import BLOCK, HEAD_DIM, Specimen
from msa_model.ops.kernels.sparse_decode import merge_decode_kernel, sparse_decode_kernel
from msa_model.ops.kernels.sparse_prefill import sparse_prefill_kernel
from msa_model.ops.sparse_decode import NUM_STAGES, NUM_WARPS, decode_splits
from msa_model.ops.target import Target

TOPK = 16
_POINTERS = {
    "query": "*bf16",
    "pool": "*u8",
    "chosen": "*i32",
    "starts": "*i32",
    "seq_lens": "*i32",
    "table": "*i32",
    "products": "*u32",
    "out": "*bf16",
    "sums": "*fp32",
    "tops": "*fp32",
}
_TYPES = {
    **{f"{name}_ptr": f"{kind}:16" for name, kind in _POINTERS.items()},
    **{f"{name}_{part}_stride": "i32:16" for name in ("query", "out") for part in ("token", "head")},
    "block_stride": "i64:16",
    "table_stride": "i32:16",
    "head_bytes": "i32:16",
    "score_scale": "fp32",
    **{name: "i32" for name in ("rows", "num_heads", "num_chosen", "num_groups")},
}


def specimens(target: Target) -> Iterator[Specimen]:
    """Decode of one token and of many, the merge of shares, and prefill."""
    common = {"PICKS": TOPK, "TARGET": target.name, "WARPS": NUM_WARPS, "STAGES": NUM_STAGES}
    for tokens in (1, 1024):
        splits, early = decode_splits(target, tokens, TOPK), target.has_early_start
        constants = {**common, "SPLITS": splits, "WAITS": early, "LETS_START": early and splits > 1}
        yield _specimen(f"sparse attention, decode, {splits} shares", sparse_decode_kernel, constants, NUM_WARPS)
    merge = {"SPLITS": TOPK, "WAITS": target.has_early_start}
    yield _specimen("sparse attention, merge of shares", merge_decode_kernel, merge, 1)
    yield _specimen("sparse attention, prefill", sparse_prefill_kernel, common, NUM_WARPS)


def _specimen(name: str, kernel: Any, constants: dict[str, Any], num_warps: int) -> Specimen:
    types = {argument: _TYPES[argument] for argument in kernel.arg_names if argument not in constants}
    # Keys and values of one block.
    loop_values = 2 * BLOCK * HEAD_DIM if "TARGET" in constants else 0
    return Specimen(
        name=name, kernel=kernel, types=types, constants=constants, num_warps=num_warps, loop_values=loop_values
    )

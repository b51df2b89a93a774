"""Kernels as they are compiled ahead of time: types of arguments, tiles of each target, and what must hold of them.

A file of specimens (this one for the index, others named ``*_specimens.py``) gives for each target what is launched
there at a typical size: tiles come from the same functions as at run time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msa_model.ops import index_score, nvfp4, select
from msa_model.ops.kernels.index_score import index_score_decode_kernel, index_score_prefill_kernel
from msa_model.ops.kernels.nvfp4 import pack_kernel, unpack_kernel
from msa_model.ops.kernels.select import select_kernel
from msa_model.ops.target import Target

HEAD_DIM, BLOCK = 128, 128
REQUESTS, BLOCKS, TOPK = 8, 4096, 16

# Streaming multiprocessors or compute units, and shared memory of one program (facts D7; H200, B200, B300, MI355X).
TARGETS = {
    "sm_90": Target(name="sm_90", num_sms=132, shared_memory_bytes=232_448),
    "sm_100": Target(name="sm_100", num_sms=148, shared_memory_bytes=232_448),
    "sm_103": Target(name="sm_103", num_sms=148, shared_memory_bytes=232_448),
    "sm_107": Target(name="sm_107", num_sms=212, shared_memory_bytes=335_872),
    "gfx950": Target(name="gfx950", num_sms=256, shared_memory_bytes=163_840),
}


@dataclass(frozen=True, kw_only=True)
class Specimen:
    """One kernel with its types and compile-time values."""

    name: str
    kernel: Any
    types: dict[str, str]
    """Triton type of each argument that is not a compile-time value; a trailing ``:16`` means a multiple of 16."""
    constants: dict[str, Any]
    num_warps: int
    num_stages: int = 3
    loop_values: int = 0
    """Values that a program decodes or encodes in one turn of its main loop; 0 where that is not counted."""
    decodes_nvfp4: bool = True
    """Whether those values are NVFP4, for which sm_100 and sm_103 have an instruction."""
    may_spill: bool = False


def specimens(target: Target) -> Iterator[Specimen]:
    """The kernels of the index branch, and NVFP4 into and out of pages."""
    decodes = [_score_decode(target, query_rows, heads) for query_rows, heads in ((1, 1), (2, 1), (8, 1), (8, 4))]
    for number, made in enumerate(decodes):
        # Some targets take the same tiles for few rows as for one.
        if made.constants not in [other.constants for other in decodes[:number]]:
            yield made
    operand = index_score.operand_type(target, False)
    yield Specimen(
        name="index score, prefill",
        kernel=index_score_prefill_kernel,
        types=_pointers("query:*bf16 pool:*u8 block_table:*i32 seq_lens:*i32 query_start:*i32 score:*fp32 table:*u32")
        | _integers("row_stride:16 block_stride:16 block_table_stride:16 score_stride num_heads blocks_per_program"),
        constants={
            "TARGET": target.name,
            "OPERAND": operand,
            "TOKENS": index_score.PREFILL_COLUMNS,
            "COLUMNS": index_score.PREFILL_COLUMNS,
            "STAGES": index_score.PREFILL_STAGES,
        },
        num_warps=4,
        loop_values=BLOCK * HEAD_DIM,
        may_spill=True,
    )
    groups = select.num_groups(BLOCKS, TOPK)
    yield Specimen(
        name="top-k",
        kernel=select_kernel,
        types=_pointers("score:*fp32 place:*i32 out:*i32")
        | _integers("token_stride:16 head_stride:16 num_heads num_blocks topk local_blocks query_rows"),
        constants={
            "TOPK": TOPK,
            "MEMBERS": BLOCKS // groups,
            "GROUPS": groups,
            "WAITS": target.has_early_start,
        },
        num_warps=select.num_warps(groups, REQUESTS),
    )
    yield Specimen(
        name="pack",
        kernel=pack_kernel,
        types=_pointers("values:*bf16 pool:*u8 slot_mapping:*i64 head_slots:*i64")
        | _integers("num_rows num_heads token_stride:16 head_stride:16 block_stride:16"),
        constants={"ROWS": nvfp4.PACK_ROWS},
        num_warps=4,
    )
    yield Specimen(
        name="unpack",
        kernel=unpack_kernel,
        types=_pointers("pool:*u8 blocks:*i64 head_slots:*i64 out:*fp32") | _integers("num_tokens block_stride:16"),
        constants={"ROWS": nvfp4.UNPACK_ROWS},
        num_warps=4,
    )


def _score_decode(target: Target, query_rows: int, heads: int) -> Specimen:
    tiling = index_score.score_tiling(target, query_rows * heads, REQUESTS, BLOCKS)
    return Specimen(
        name=f"index score, decode, {query_rows} rows, {heads} heads",
        kernel=index_score_decode_kernel,
        types=_pointers("query:*bf16 pool:*u8 block_table:*i32 seq_lens:*i32 score:*fp32 table:*u32")
        | _integers("row_stride:16 block_stride:16 block_table_stride:16 score_stride num_rows num_heads"),
        constants={
            "TARGET": target.name,
            "OPERAND": index_score.operand_type(target, tiling.applies_per_result),
            "PER_RESULT": tiling.applies_per_result,
            "ROWS": tiling.rows,
            "TILE": tiling.tile,
            "BLOCKS": tiling.blocks,
            "STEPS": tiling.steps,
            "STAGES": tiling.stages,
            "LETS_START": target.has_early_start,
        },
        num_warps=tiling.num_warps,
        loop_values=tiling.blocks * BLOCK * HEAD_DIM,
    )


def _pointers(text: str) -> dict[str, str]:
    """``name:type`` words to arguments ``name_ptr``, at multiples of 16 bytes."""
    named = (word.split(":") for word in text.split())
    return {f"{name}_ptr": f"{kind}:16" for name, kind in named}


def _integers(text: str) -> dict[str, str]:
    """Words to int32 arguments."""
    return {word.removesuffix(":16"): "i32:16" if word.endswith(":16") else "i32" for word in text.split()}

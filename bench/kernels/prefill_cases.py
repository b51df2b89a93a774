"""Sparse attention of prefill chunks beside upstream's; figures without a demand. Rows of a case are query tokens."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from bench.kernels.attention_cases import batch_of, choices, floor_of, key_value_pool, upstream_cache
from bench.kernels.case import TP1, TP4_RANK, Bench, Call, Case, Size
from bench.kernels.peer import upstream
from msa_model.ops.sparse_prefill import sparse_attention_prefill
from msa_model.reference.block_attention import SCALE

SIZES = [
    Size(TP4_RANK, 32 * 1024, 1, 2048),
    Size(TP4_RANK, 128 * 1024, 2, 1024),
    Size(TP1, 32 * 1024, 1, 2048),
]


def cases(bench: Bench) -> Iterator[Case]:
    """One case a size."""
    for size in SIZES:
        yield Case("prefill", size, floor_of(size), functools.partial(_prepare, bench, size))


def _prepare(bench: Bench, size: Size) -> dict[str, Sequence[Call]]:
    query, seq_lens, table = batch_of(size)
    chosen_sets, out = choices(bench, size), torch.empty_like(query)
    pool = key_value_pool(size.shape.kv_heads)
    starts = torch.arange(size.batch + 1, device="cuda").int() * size.query_rows

    def ours(chosen: torch.Tensor) -> None:
        sparse_attention_prefill(
            query, pool, 0, 2, chosen, table, seq_lens, starts, max_query_len=size.query_rows, out=out
        )

    made: dict[str, Sequence[Call]] = {"ours": [functools.partial(ours, chosen) for chosen in chosen_sets]}
    module = upstream("sparse_attn", bench.peer_folder)
    if module is not None:
        for name, dtype in (("upstream_bf16", torch.bfloat16), ("upstream_fp8", torch.float8_e4m3fn)):
            cache = upstream_cache(size.shape.kv_heads, dtype)
            made[name] = [
                functools.partial(
                    _upstream,
                    module,
                    size,
                    query,
                    cache,
                    chosen.transpose(0, 1).contiguous(),
                    (table, starts, seq_lens),
                    out,
                )
                for chosen in chosen_sets
            ]
    return made


def _upstream(
    module: Any,
    size: Size,
    query: torch.Tensor,
    cache: torch.Tensor,
    chosen: torch.Tensor,
    batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    out: torch.Tensor,
) -> object:
    heads, longest = size.shape.kv_heads, size.query_rows
    return module.minimax_m3_sparse_attn(query, cache, chosen, *batch, batch[2] - longest, longest, heads, SCALE, out)

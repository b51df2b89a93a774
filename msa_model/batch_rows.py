"""One step's batch as kernels take it: the requests with one same, small number of query tokens, and the rest.

vLLM puts decode rows before prefill's, so the first kind comes first; what is left of decode behind them (rows of other
lengths, where drafts ran out) goes with the rest, right but slower. All tensors are views of vLLM's own,
and no call waits for the device: lengths of contexts are known to it alone.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.v1.attention.backend import CommonAttentionMetadata

# One token and 7 drafts (fact M8): what decode kernels have rows for.
MAX_UNIFORM_QUERY_LEN = 8


@dataclass(frozen=True)
class UniformRows:
    """The first R requests, with ``query_len`` tokens each; fit to be captured in a CUDA graph."""

    query_len: int
    seq_lens: torch.Tensor
    """int32 [R], query tokens included; 0 in padding rows."""
    block_table: torch.Tensor
    """int32 [R, M]; entries beyond a request's own blocks are stale."""

    @property
    def num_tokens(self) -> int:
        return self.query_len * self.seq_lens.shape[0]


@dataclass(frozen=True)
class VariedRows:
    """The requests behind them, of any number of query tokens: prefill, and what is left of decode in odd batches."""

    first_token: int
    """Query tokens of the batch that come before."""
    num_tokens: int
    query_start_loc: torch.Tensor
    """int32 [R + 1], counted from ``first_token``."""
    seq_lens: torch.Tensor
    """int32 [R], query tokens included."""
    block_table: torch.Tensor
    """int32 [R, M]; entries beyond a request's own blocks are stale."""
    positions: torch.Tensor
    """int32 [num_tokens], of each query token in its context."""
    max_query_len: int

    def pieces(self, max_tokens: int) -> Iterator["VariedRows"]:
        """The same in pieces of up to ``max_tokens``, each with the contexts as they are at its end."""
        for first in range(0, self.num_tokens, max_tokens):
            yield self.piece(first, min(first + max_tokens, self.num_tokens))

    def piece(self, first: int, end: int) -> "VariedRows":
        """Query tokens ``first`` to ``end`` of these, with the contexts as they are there."""
        ends = self.query_start_loc[1:]
        return VariedRows(
            first_token=self.first_token + first,
            num_tokens=end - first,
            query_start_loc=self.query_start_loc.clamp(first, end) - first,
            seq_lens=self.seq_lens - (ends - end).clamp(min=0).minimum(ends - self.query_start_loc[:-1]),
            block_table=self.block_table,
            positions=self.positions[first:end],
            max_query_len=min(self.max_query_len, end - first),
        )


def split_rows(common: "CommonAttentionMetadata", max_uniform_len: int) -> tuple[UniformRows | None, VariedRows | None]:
    """The two kinds, None where there is none of it.

    ``max_uniform_len``: queries up to this length may count as uniform, at most MAX_UNIFORM_QUERY_LEN.
    """
    starts = common.query_start_loc_cpu[: common.num_reqs + 1].tolist()
    lengths = [end - start for start, end in itertools.pairwise(starts)]
    query_len, num_uniform = lengths[0], 0
    if 0 < query_len <= min(max_uniform_len, MAX_UNIFORM_QUERY_LEN):
        num_uniform = next((row for row, one in enumerate(lengths) if one != query_len), len(lengths))
    uniform = varied = None
    if num_uniform:
        rows = slice(num_uniform)
        uniform = UniformRows(query_len, common.seq_lens[rows], common.block_table_tensor[rows])
    # Rows without a token at the end are padding of a full graph.
    if any(lengths[num_uniform:]):
        rows, first_token = slice(num_uniform, len(lengths)), starts[num_uniform]
        query_start_loc = common.query_start_loc[num_uniform : len(lengths) + 1] - first_token
        num_tokens = starts[-1] - first_token
        varied = VariedRows(
            first_token=first_token,
            num_tokens=num_tokens,
            query_start_loc=query_start_loc,
            seq_lens=common.seq_lens[rows],
            block_table=common.block_table_tensor[rows],
            positions=_positions(query_start_loc, common.seq_lens[rows], num_tokens),
            max_query_len=max(lengths[rows]),
        )
    return uniform, varied


def _positions(query_start_loc: torch.Tensor, seq_lens: torch.Tensor, num_tokens: int) -> torch.Tensor:
    token = torch.arange(num_tokens, dtype=torch.int32, device=seq_lens.device)
    row = torch.searchsorted(query_start_loc[1:], token, right=True)
    return seq_lens[row] - query_start_loc[row + 1] + token

"""Collectives of one tensor-parallel group over rows of activations, and the bytes that they send (facts P2, P3).

Every collective is a generator that yields once, between its launch and the wait for its end: whoever drives it may
compute something else meanwhile (``steps.run_together``). On CUDA the wait is the stream's and not the host's.

Shape letters: N ranks, T tokens (padded to a multiple of N), S = T / N of them on each rank, D values of a row.
"""

from collections import Counter
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from msa_model.row_format import RowFormat, as_bytes, from_bytes
from msa_model.steps import Steps

# Newer torch has another name for it and warns of the old one.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Router(Protocol):
    """What chooses experts: float32 scores [S, num_experts] of each token's norm [S, D]."""

    num_experts: int

    def scores(self, normed: torch.Tensor) -> torch.Tensor: ...


class Exchange:
    """Collectives among the ranks of ``group``; all ranks must call them in one order.

    Args:
        rows: format in which activations are gathered and exchanged; sums are exact.
    """

    def __init__(self, group: dist.ProcessGroup, rows: RowFormat) -> None:
        self._group, self._format = group, rows
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._has_reduce_scatter = dist.get_backend(group) == "nccl"
        self.sent_bytes: Counter[str] = Counter()
        """Bytes that this rank has sent to others, by what they were."""

    def num_padded(self, num_tokens: int) -> int:
        """The next multiple of the number of ranks."""
        return -(-num_tokens // self.size) * self.size

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` with zeros behind it up to [T, ...]."""
        missing = self.num_padded(x.shape[0]) - x.shape[0]
        return torch.cat([x, x.new_zeros(missing, *x.shape[1:])]) if missing else x

    def own_rows(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's share [S, ...] of ``x`` [T or fewer, ...]."""
        padded = self.pad(x)
        share = padded.shape[0] // self.size
        return padded[self.rank * share : (self.rank + 1) * share]

    def gather(self, x: torch.Tensor) -> Steps[torch.Tensor]:
        """[T, D] of all ranks' ``x`` [S, D]."""
        rows = yield from self._gather(self._format.encode(x), "gather")
        return self._format.decode(rows, x)

    def gather_norm(self, residual: torch.Tensor, delta: torch.Tensor | None, norm: nn.Module) -> Steps[torch.Tensor]:
        """``residual += delta`` [S, D] in place, and [T, D] of all ranks' norms of it."""
        rows = residual.new_empty(residual.shape[0], self._format.row_bytes(residual), dtype=torch.uint8)
        self._format.encode_norm(residual, delta, norm, rows)
        gathered = yield from self._gather(rows, "gather")
        return self._format.decode(gathered, residual)

    def gather_routed_norm(
        self, residual: torch.Tensor, delta: torch.Tensor | None, norm: nn.Module, router: Router
    ) -> Steps[tuple[torch.Tensor, torch.Tensor]]:
        """As ``gather_norm``, and in the same collective [T, E] of what each rank's ``router`` scores its own norms.

        The router sees the norms before they are packed, and its float32 scores cross as they are.
        """
        width, num_scores = self._format.row_bytes(residual), router.num_experts
        rows = residual.new_empty(residual.shape[0], width + 4 * num_scores, dtype=torch.uint8)
        normed = self._format.encode_norm(residual, delta, norm, rows[:, :width])
        rows[:, width:] = as_bytes(router.scores(normed))
        gathered = yield from self._gather(rows, "gather", router_scores=4 * num_scores)
        return self._format.decode(gathered[:, :width], residual), from_bytes(gathered[:, width:], torch.float32)

    def gather_exact(self, x: torch.Tensor) -> Steps[torch.Tensor]:
        """[T, D] of all ranks' ``x`` [S, D], bit for bit."""
        rows = yield from self._gather(as_bytes(x), "gather_exact")
        return from_bytes(rows, x.dtype)

    def swap(self, x: torch.Tensor) -> Steps[torch.Tensor]:
        """All-to-all: [S, N * D], the own rows of every rank's ``x`` [T, D] side by side in the order of ranks."""
        rows = self._format.encode(x)
        received = torch.empty_like(rows)
        work = self._all_to_all("swap", received, rows)
        yield
        work.wait()
        del rows  # alive until here, as the collective reads it
        return self._format.decode(received, x).unflatten(0, (self.size, -1)).transpose(0, 1).flatten(1)

    def reduce_scatter(self, x: torch.Tensor) -> Steps[torch.Tensor]:
        """The own rows [S, D] of the sum over ranks of ``x`` [T, D], in its dtype."""
        x = x.contiguous()
        if self._has_reduce_scatter:
            out = x.new_empty(x.shape[0] // self.size, *x.shape[1:])
            self._count("reduce_scatter", x.nbytes)
            work = _reduce_scatter(out, x, group=self._group, async_op=True)
            yield
            work.wait()
            return out
        # Gloo has none that sends as little. Each rank sums in the order of ranks.
        received = torch.empty_like(x)
        work = self._all_to_all("reduce_scatter", received, x)
        yield
        work.wait()
        first, *others = received.unflatten(0, (self.size, -1)).unbind(0)
        for other in others:
            first += other
        return first

    def all_reduce(self, x: torch.Tensor) -> Steps[torch.Tensor]:
        """The sum over ranks of ``x`` [any number of rows, D]: its rows reduced where they belong, then gathered."""
        own = yield from self.reduce_scatter(self.pad(x))
        summed = yield from self.gather_exact(own)
        return summed[: x.shape[0]]

    def _gather(self, rows: torch.Tensor, kind: str, **others: int) -> Steps[torch.Tensor]:
        """uint8 [T, B] of all ranks' ``rows`` [S, B]; ``others``: bytes of a row that are of another kind."""
        gathered = rows.new_empty(rows.shape[0] * self.size, rows.shape[1])
        for name, row_bytes in {kind: rows.shape[1] - sum(others.values()), **others}.items():
            self._count(name, gathered.shape[0] * row_bytes)
        work = _all_gather(gathered, rows, group=self._group, async_op=True)
        yield
        work.wait()
        del rows  # alive until here, as the collective reads it
        return gathered

    def _all_to_all(self, kind: str, received: torch.Tensor, x: torch.Tensor) -> Any:
        self._count(kind, x.nbytes)
        return dist.all_to_all_single(received, x, group=self._group, async_op=True)

    def _count(self, kind: str, all_bytes: int) -> None:
        """``all_bytes``: of all ranks' shares; the own one stays here."""
        self.sent_bytes[kind] += all_bytes * (self.size - 1) // self.size

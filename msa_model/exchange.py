"""Collectives of one tensor-parallel group over rows of activations, and the bytes that they send (facts P2, P3).

Every collective is a generator that yields once, between its launch and the wait for its end: whoever drives it may
compute something else meanwhile (``steps.run_together``). On CUDA the wait is the stream's and not the host's.

Shape letters: N ranks, T tokens (padded to a multiple of N), S = T / N of them on each rank, D values of a row.
"""

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist

from msa_model.reference import mxfp8
from msa_model.steps import Steps

# Newer torch has another name for it and warns of the old one.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Exchange:
    """Collectives among the ranks of ``group``; all ranks must call them in one order.

    Args:
        is_exact: gather and exchange activations as they are, instead of as MXFP8.
    """

    def __init__(self, group: dist.ProcessGroup, *, is_exact: bool) -> None:
        self._group, self._is_exact = group, is_exact
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
        """[T, D] of all ranks' ``x`` [S, D], in the exchange's format."""
        [rows] = yield from self._gather({"gather": self._encode(x)})
        return self._decode(rows, x)

    def gather_with(self, x: torch.Tensor, logits: torch.Tensor) -> Steps[tuple[torch.Tensor, torch.Tensor]]:
        """As ``gather``, and in the same collective [T, E] of all ranks' router ``logits`` [S, E], as they are."""
        parts = {"gather": self._encode(x), "router_logits": _as_bytes(logits)}
        rows, scores = yield from self._gather(parts)
        return self._decode(rows, x), _from_bytes(scores, logits.dtype)

    def gather_exact(self, x: torch.Tensor) -> Steps[torch.Tensor]:
        """[T, D] of all ranks' ``x`` [S, D], bit for bit."""
        [rows] = yield from self._gather({"gather_exact": _as_bytes(x)})
        return _from_bytes(rows, x.dtype)

    def swap(self, x: torch.Tensor) -> Steps[torch.Tensor]:
        """All-to-all: [S, N * D], the own rows of every rank's ``x`` [T, D] side by side in the order of ranks."""
        rows = self._encode(x)
        received = torch.empty_like(rows)
        work = self._all_to_all("swap", received, rows)
        yield
        work.wait()
        del rows  # alive until here, as the collective reads it
        return self._decode(received, x).unflatten(0, (self.size, -1)).transpose(0, 1).flatten(1)

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

    def _encode(self, x: torch.Tensor) -> torch.Tensor:
        """uint8 rows of ``x`` [S, D]."""
        if self._is_exact:
            return _as_bytes(x)
        values, scale = mxfp8.quantize(x)
        return torch.cat([values.view(torch.uint8), scale], dim=-1)

    def _decode(self, rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        if self._is_exact:
            return _from_bytes(rows, like.dtype)
        width = like.shape[-1]
        values = rows[:, :width].contiguous().view(torch.float8_e4m3fn)
        return mxfp8.dequantize(values, rows[:, width:].contiguous()).to(like.dtype)

    def _gather(self, parts: dict[str, torch.Tensor]) -> Steps[list[torch.Tensor]]:
        """Rows of bytes of all ranks; several parts cross in one collective."""
        widths = [part.shape[1] for part in parts.values()]
        rows = torch.cat(list(parts.values()), dim=1) if len(parts) > 1 else next(iter(parts.values()))
        gathered = rows.new_empty(rows.shape[0] * self.size, rows.shape[1])
        for kind, part in parts.items():
            self._count(kind, part.nbytes * self.size)
        work = _all_gather(gathered, rows, group=self._group, async_op=True)
        yield
        work.wait()
        del rows  # alive until here, as the collective reads it
        return list(gathered.split(widths, dim=1))

    def _all_to_all(self, kind: str, received: torch.Tensor, x: torch.Tensor) -> Any:
        self._count(kind, x.nbytes)
        return dist.all_to_all_single(received, x, group=self._group, async_op=True)

    def _count(self, kind: str, all_bytes: int) -> None:
        """``all_bytes``: of all ranks' shares; the own one stays here."""
        self.sent_bytes[kind] += all_bytes * (self.size - 1) // self.size


def _as_bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


def _from_bytes(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return rows.contiguous().view(dtype)

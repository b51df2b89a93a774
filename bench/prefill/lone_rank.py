"""One rank of several whose peers are not there: it computes its share, and what it would be sent costs no time."""

from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed import get_tp_group

from msa_model import exchange as collectives
from msa_model.exchange import Exchange


class Silence:
    """Collectives that send nothing and wait for nothing; results have the right shape and plausible values.

    What peers would send is the own data, repeated once for each shape and kept: a copy at each call would be timed.
    So the result's memory is exchanged for the kept one, and callers must not write to it.
    """

    def __init__(self, tp_size: int) -> None:
        self._tp_size = tp_size
        self._kept: dict[tuple[str, torch.Size, torch.dtype], torch.Tensor] = {}

    def all_gather(self, out: torch.Tensor, x: torch.Tensor, **_: Any) -> "Ended":
        key = ("gather", out.shape, out.dtype)
        if key not in self._kept:
            self._kept[key] = x.repeat(self._tp_size, *[1] * (x.dim() - 1))
        out.set_(self._kept[key])
        return Ended()

    def all_to_all(self, out: torch.Tensor, x: torch.Tensor, **_: Any) -> "Ended":
        key = ("all-to-all", out.shape, out.dtype)
        if key not in self._kept:
            self._kept[key] = x.clone()
        out.set_(self._kept[key])
        return Ended()

    def reduce_scatter(self, out: torch.Tensor, x: torch.Tensor, **_: Any) -> "Ended":
        out.set_(x[: out.shape[0]])
        return Ended()


class Ended:
    """A collective that is over."""

    def wait(self) -> None:
        """Returns at once."""


def pretend(tp_size: int) -> None:
    """Make this process, vLLM's only rank, rank 0 of ``tp_size``: for models that are built from here on."""
    group: Any = get_tp_group()
    group.world_size, group.ranks = tp_size, list(range(tp_size))
    group.all_reduce = lambda x: x
    silence = Silence(tp_size)
    changed: list[tuple[Any, str, Any]] = [
        (collectives, "_all_gather", silence.all_gather),
        (collectives, "_reduce_scatter", silence.reduce_scatter),
        (dist, "all_to_all_single", silence.all_to_all),
    ]
    for owner, name, value in changed:
        assert hasattr(owner, name), f"{owner.__name__} has no {name} any more"
        setattr(owner, name, value)


def silence(exchange: Exchange, tp_size: int) -> None:
    """Let a model's exchange count on as many ranks; torch's group has one."""
    exchange.size = tp_size
    exchange._has_reduce_scatter = True

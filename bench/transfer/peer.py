"""What the measured ways to move blocks have in common."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.transfer.case import Request
from bench.transfer.geometry import Layout

READ_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One round. ``post_s`` ends when the last request is posted, ``total_s`` when the last one is known as done.

    ``num_descriptors`` is what NIXL was left with after merging, 0 where NIXL has no part.
    """

    total_s: float
    post_s: float
    num_descriptors: int


class Peer(Protocol):
    """Moves blocks of the source's pool into the sink's; lives in the sink's process."""

    name: str
    layout: Layout

    def move(self, requests: Sequence[Request]) -> Sample:
        """Move all requests at once and wait for them.

        Raises:
            RuntimeError: a request failed or took longer than ``READ_LIMIT_S``.
        """
        ...

    def close(self) -> None:
        """Give back what the peer holds; the pools stay."""
        ...


def wait_until(is_done: Callable[[], bool], name: str) -> None:
    """Ask again and again, as a step of an engine would, without a pause.

    Raises:
        RuntimeError: it took longer than ``READ_LIMIT_S``.
    """
    give_up_at = time.perf_counter() + READ_LIMIT_S
    while not is_done():
        if time.perf_counter() > give_up_at:
            raise RuntimeError(f"{name}: not done after {READ_LIMIT_S:.0f} s")

"""The sink's process: moves the same blocks with every peer in turn, checks the bytes and takes the times."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.transfer.case import Case, Request, draw
from bench.transfer.copy_peers import CopyPeer, CopyRowsPeer
from bench.transfer.geometry import ROW_BYTES
from bench.transfer.pages_peer import PagesPeer
from bench.transfer.peer import Peer, Sample
from bench.transfer.pool import Pool
from bench.transfer.rows_peer import RowsPeer
from bench.transfer.source import Offer

VLLM_PREFIX = "vllm_"
COPY_ROWS = ("copy_rows", "copy_rows_batch")
NIXL_PEERS = ("rows", "pages", "vllm_LBNHC", "vllm_BLHNC")
NUM_WITNESSES = 16  # blocks outside the request that must keep their poison


@dataclass(frozen=True, slots=True)
class Effort:
    """A peer is measured ``min_rounds`` times in each case, and more often while it has used less than ``budget_s``."""

    min_rounds: int = 5
    max_rounds: int = 40
    budget_s: float = 0.25


def peer_names(device: str) -> tuple[str, ...]:
    """All that make sense there; ``rows_sorted`` has to be asked for by name."""
    return ("copy", *(COPY_ROWS if device == "cuda" else ()), *NIXL_PEERS)


def peer_groups(device: str, names: Sequence[str]) -> list[list[str]]:
    """Peers that are measured in turn, in the same rounds: on CUDA all.

    On CPU each of vLLM's is alone. Its agents' progress threads spin on a core each, on both sides, and a machine of
    two cores would have none left for the others.
    """
    if device == "cuda":
        return [list(names)]
    alone = [[name] for name in names if name.startswith(VLLM_PREFIX)]
    together = [name for name in names if not name.startswith(VLLM_PREFIX)]
    return [*([together] if together else []), *alone]


def make_peer(name: str, pool: Pool, replica: Pool, offer: Offer) -> Peer:
    """
    Args:
        replica: the source's bytes once more, on the source's GPU, in this process.

    Raises:
        ValueError: no peer has this name.
    """
    if name == "copy":
        return CopyPeer(pool, replica)
    if name in COPY_ROWS:
        return CopyRowsPeer(name, pool, replica)
    if name in ("rows", "rows_sorted"):
        return RowsPeer(pool, (offer.metadata, offer.region), name=name, does_sort=name == "rows_sorted")
    if name == "pages":
        return PagesPeer(pool, (offer.metadata, offer.region))
    if name.removeprefix(VLLM_PREFIX) in offer.vllm:
        from bench.transfer.vllm_peer import VllmPeer

        layout = name.removeprefix(VLLM_PREFIX)
        return VllmPeer(layout, pool, offer.vllm[layout])
    raise ValueError(f"no peer is called {name!r}")


def verify(peer: Peer, requests: Sequence[Request], pool: Pool, replica: Pool, rng: np.random.Generator) -> None:
    """Move once into poisoned blocks.

    Raises:
        RuntimeError: a byte differs from the source's, or a block outside the requests was written.
    """
    mine = np.concatenate([request.mine for request in requests])
    theirs = np.concatenate([request.theirs for request in requests])
    if peer.name == "copy":  # takes the first blocks of both pools, whichever are asked for
        mine = theirs = np.arange(len(mine))
    outside = np.setdiff1d(np.arange(pool.num_blocks), mine)
    witnesses = rng.permutation(outside)[:NUM_WITNESSES]
    pool.poison(np.concatenate([mine, witnesses]), peer.layout)
    peer.move(requests)
    pool.synchronize()
    if not pool.equals(mine, replica, theirs, peer.layout):
        raise RuntimeError(f"{peer.name}: the blocks that arrived are not those of the source")
    if not pool.is_poisoned(witnesses, peer.layout):
        raise RuntimeError(f"{peer.name}: a block was written that nobody asked for")


def measure(
    case: Case, peers: Sequence[Peer], pool: Pool, replica: Pool, effort: Effort, rng: np.random.Generator
) -> dict[str, Any]:
    """Rounds in which every peer moves blocks of its own draw, in changing order; one verified round first.

    Returns:
        for each peer's name what ``summary`` says.
    """
    for peer in peers:
        verify(peer, draw(case, pool.num_blocks, rng), pool, replica, rng)
    samples: dict[str, list[Sample]] = {peer.name: [] for peer in peers}
    for _ in range(effort.max_rounds):
        due = [peer for peer in peers if _is_due(samples[peer.name], effort)]
        for number in rng.permutation(len(due)):
            requests = draw(case, pool.num_blocks, rng)
            samples[due[number].name].append(due[number].move(requests))
    return {name: summary(case.num_blocks, taken) for name, taken in samples.items()}


def _is_due(taken: Iterable[Sample], effort: Effort) -> bool:
    taken = list(taken)
    return len(taken) < effort.min_rounds or sum(sample.total_s for sample in taken) < effort.budget_s


def summary(num_blocks: int, taken: Sequence[Sample]) -> dict[str, float]:
    """Medians: whole time and time to post in us, rate in GB/s (1e9 B); the fastest and slowest round in us."""
    total_s = statistics.median(sample.total_s for sample in taken)
    return {
        "us": round(total_s * 1e6, 1),
        "post_us": round(statistics.median(sample.post_s for sample in taken) * 1e6, 1),
        "gb_per_s": round(num_blocks * ROW_BYTES / total_s / 1e9, 2),
        "min_us": round(min(sample.total_s for sample in taken) * 1e6, 1),
        "max_us": round(max(sample.total_s for sample in taken) * 1e6, 1),
        "descriptors": statistics.median(sample.num_descriptors for sample in taken),
        "rounds": len(taken),
    }

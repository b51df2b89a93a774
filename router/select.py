"""Policies that pick one worker among those that may be picked, and the selector that applies one."""

from collections.abc import Sequence
from itertools import count
from typing import Protocol

from router.config import PolicyName
from router.workers import Worker
from wire.worker import WorkerRole


class Policy(Protocol):
    """Picks from a non-empty list; never waits, never changes a worker."""

    def pick(self, workers: Sequence[Worker]) -> Worker: ...


class RoundRobin:
    """The worker that was picked longest ago."""

    def pick(self, workers: Sequence[Worker]) -> Worker:
        return min(workers, key=lambda worker: worker.picked_at)


class LeastLoaded:
    """The worker with the least in flight from this router; among equals the one picked longest ago.

    Prefill's work grows with the prompt, so it is counted in bytes of body; decode's with the number of sequences.
    """

    def pick(self, workers: Sequence[Worker]) -> Worker:
        return min(workers, key=self._load)

    @staticmethod
    def _load(worker: Worker) -> tuple[int, int, int]:
        load = (worker.bytes_in_flight, worker.num_in_flight)
        first, second = load if worker.role is WorkerRole.PREFILL else load[::-1]
        return first, second, worker.picked_at


POLICIES: dict[PolicyName, type[Policy]] = {"round_robin": RoundRobin, "least_loaded": LeastLoaded}


class Selector:
    """Applies a policy and remembers the order of picks."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._sequence = count(1)

    def select(self, workers: Sequence[Worker], avoid: Sequence[str] = ()) -> Worker | None:
        """One of ``workers``, if there is any; one of those named in ``avoid`` only if there are no others."""
        if avoid:
            workers = [worker for worker in workers if worker.worker_id not in avoid] or workers
        if not workers:
            return None
        worker = self._policy.pick(workers) if len(workers) > 1 else workers[0]
        worker.picked_at = next(self._sequence)
        return worker

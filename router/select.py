"""Policies that pick one worker among those that may be picked, and the selector that applies one.

round_robin      each in turn
least_loaded     the one with the least in flight from this router
power_of_two     the less loaded of two drawn at random: nearly as good, and many routers don't all pick the same one
queue_depth      the one with the fewest tokens before it, those of other routers included
prefix_affinity  the one that had this conversation before, unless it is far busier than the others
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import count
from random import Random
from typing import Protocol

from router.config import PolicyName, RouterConfig
from router.context import RequestContext
from router.prefix import DIGEST_BYTES, prefix_digest
from router.workers import Worker
from wire.worker import WorkerRole

# What a request of another router is taken to cost where this router has none on the worker to go by: about the
# medians of prompt and answer in public traces of chat together (Splitwise, 2023: 1,020 and 129).
FOREIGN_REQUEST_TOKENS = 1024
# Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, 2017): at most so much above the mean.
MAX_OVER_MEAN = 1.25
# Below so much in flight nobody spills: vLLM computes as many prompt tokens in one step of its engine
# (max_num_batched_tokens, by default 8,192 on large GPUs), so the prompt would hardly wait.
SPILL_FREE_TOKENS = 8192


class Policy(Protocol):
    """Picks from a non-empty list; never waits, never changes a worker."""

    def pick(self, workers: Sequence[Worker], ctx: RequestContext) -> Worker: ...


class RoundRobin:
    """The worker that was picked longest ago."""

    def pick(self, workers: Sequence[Worker], ctx: RequestContext) -> Worker:
        return min(workers, key=lambda worker: worker.picked_at)


class LeastLoaded:
    """The worker with the least in flight from this router; among equals the one picked longest ago.

    Prefill's work grows with the prompt, so it is counted in tokens; decode's with the number of sequences.
    """

    def pick(self, workers: Sequence[Worker], ctx: RequestContext) -> Worker:
        # The default policy: once a leg, so without a key for each worker.
        best = workers[0]
        is_prefill = best.role is WorkerRole.PREFILL
        least = best.tokens_in_flight if is_prefill else best.num_in_flight
        for worker in workers[1:]:
            load = worker.tokens_in_flight if is_prefill else worker.num_in_flight
            if load < least or (load == least and _load(worker) < _load(best)):
                best, least = worker, load
        return best


class PowerOfTwo:
    """Of two different workers drawn at random, the one with less in flight."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def pick(self, workers: Sequence[Worker], ctx: RequestContext) -> Worker:
        return min(self._random.sample(workers, min(2, len(workers))), key=_load)


class QueueDepth:
    """The worker with the fewest tokens before a new request.

    Those of this router are known. Of what the worker reports as running or waiting beyond these requests, each is
    taken to cost as much as this router's own on it do in the mean. Static workers report nothing.
    """

    def pick(self, workers: Sequence[Worker], ctx: RequestContext) -> Worker:
        return min(workers, key=self._depth)

    @staticmethod
    def _depth(worker: Worker) -> tuple[float, int]:
        num_reported = worker.status.num_requests_running + worker.status.num_requests_waiting
        num_foreign = max(0, num_reported - worker.num_in_flight)
        mean = worker.tokens_in_flight / worker.num_in_flight if worker.num_in_flight else FOREIGN_REQUEST_TOKENS
        return worker.tokens_in_flight + num_foreign * mean, worker.picked_at


class PrefixAffinity:
    """Rendezvous hashing of the prompt's start (``router.prefix``) over the workers, with a bound on the load.

    Each start has an order of all workers of its own, which loses or gains one worker as that one goes or comes, and
    changes in no other way. The first that is within the bound is picked: with this request, at most ``MAX_OVER_MEAN``
    times the mean of all, or ``SPILL_FREE_TOKENS``. So one hot start spills over by single requests, and returns.
    """

    def pick(self, workers: Sequence[Worker], ctx: RequestContext) -> Worker:
        digest = prefix_digest(ctx.checked_body())
        ranked = sorted(workers, key=lambda worker: _weight(digest, worker.worker_id), reverse=True)
        tokens = ctx.prefill_tokens if workers[0].role is WorkerRole.PREFILL else ctx.decode_tokens
        mean = (sum(worker.tokens_in_flight for worker in workers) + tokens) / len(workers)
        bound = max(MAX_OVER_MEAN * mean, SPILL_FREE_TOKENS)
        # Where the request alone is beyond the bound, it counts only that nobody else's is before it.
        within = (w for w in ranked if w.tokens_in_flight + tokens <= bound or w.tokens_in_flight == 0)
        return next(within, None) or min(ranked, key=_load)


def _load(worker: Worker) -> tuple[int, int, int]:
    load = (worker.tokens_in_flight, worker.num_in_flight)
    first, second = load if worker.role is WorkerRole.PREFILL else load[::-1]
    return first, second, worker.picked_at


def _weight(digest: bytes, worker_id: str) -> bytes:
    return blake2b(worker_id.encode(), digest_size=DIGEST_BYTES, key=digest).digest()


POLICIES: dict[PolicyName, Callable[[Random], Policy]] = {
    "round_robin": lambda _: RoundRobin(),
    "least_loaded": lambda _: LeastLoaded(),
    "power_of_two": PowerOfTwo,
    "queue_depth": lambda _: QueueDepth(),
    "prefix_affinity": lambda _: PrefixAffinity(),
}


class Selector:
    """Applies a policy and remembers the order of picks."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._sequence = count(1)

    def select(self, workers: Sequence[Worker], ctx: RequestContext, avoid: Sequence[str] = ()) -> Worker | None:
        """One of ``workers``, if there is any; one of those named in ``avoid`` only if there are no others."""
        if avoid:
            workers = [worker for worker in workers if worker.worker_id not in avoid] or workers
        if not workers:
            return None
        worker = self._policy.pick(workers, ctx) if len(workers) > 1 else workers[0]
        worker.picked_at = next(self._sequence)
        return worker


def make_selectors(config: RouterConfig, random: Random) -> dict[WorkerRole, Selector]:
    """One for each role, by the policies that are configured."""
    named = {WorkerRole.PREFILL: config.prefill_policy, WorkerRole.DECODE: config.decode_policy}
    return {role: make_selector(name or config.policy, random) for role, name in named.items()}


def make_selector(name: PolicyName, random: Random) -> Selector:
    """By the policy of that name."""
    return Selector(POLICIES[name](random))

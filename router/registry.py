"""The registry: which workers exist, what they said last, and what the router has in flight on each.

A worker comes in by heartbeat (and is forgotten when silent for ``ttl_s``) or by static URL (and stays, probed by
``router.health``). Only READY, unsuspected workers are given out, and only in pairs that fit (``router.pairing``).
Single event loop; nothing here waits.
"""

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from router.breakers import end_wait
from router.dialects import TANDEM, Dialect
from router.pairing import Identity, find_mismatch, is_pair, is_same_identity
from router.pools import Pools
from router.workers import Worker
from wire.errors import BadRequest, Conflict, NotFound
from wire.versions import HISTORY
from wire.worker import KVPeer, WorkerHeartbeat, WorkerRegistration, WorkerRole, WorkerState, WorkerStatus

# A fenced process may send a few last heartbeats; more restarts than this within one ttl don't happen.
NUM_FENCED_GENERATIONS = 16
STATIC_GENERATION = "static"


@dataclass(slots=True)
class WorkerRegistry:
    """All workers by id.

    Args:
        ttl_s: seconds without a heartbeat after which a registered worker is forgotten.
        clock: monotonic seconds.
    """

    ttl_s: float
    clock: Callable[[], float]
    _workers: dict[str, Worker] = field(default_factory=dict)
    _fenced: dict[str, deque[str]] = field(default_factory=dict)
    _pools: Pools | None = None
    """None: something has changed since they were worked out."""
    _pools_end_s: float = inf
    """No worker is silent for too long, and no breaker has waited long enough, before this."""
    on_pools: Callable[[Pools], None] | None = None
    """Told whenever they are worked out anew."""

    def heartbeat(self, beat: WorkerHeartbeat) -> Worker:
        """Register the worker or refresh it; a new generation replaces the old one at once.

        Raises:
            BadRequest: an unknown wire version, or a generation that a newer one has replaced.
            Conflict: a worker that is new here and that ``check`` refuses. One that was taken once stays, whoever
                comes and goes beside it.
        """
        registration = beat.registration
        if registration.generation in self._fenced.get(registration.worker_id, ()):
            raise BadRequest(
                f"Worker {registration.worker_id} has a newer generation.",
                param="registration.generation",
                code="generation_replaced",
            )
        worker = self._workers.get(registration.worker_id)
        is_known = worker is not None and worker.generation == registration.generation
        known = worker.registration if worker is not None and is_known else None
        if known is None or not is_same_identity(known, registration):
            self.check(registration)
        if worker is None or not is_known:
            worker = self._replace(registration, beat.status)
        is_news = worker.is_suspect or worker.status.state is not beat.status.state or known != registration
        worker.registration, worker.status = registration, beat.status
        worker.url, worker.role, worker.model = registration.url.rstrip("/"), registration.role, registration.model
        worker.max_model_len = registration.max_model_len
        worker.seen_s, worker.is_suspect = self.clock(), False
        if is_news:
            self.refresh()
        return worker

    def check(self, newcomer: Identity) -> None:
        """Whether ``newcomer`` can pair with one of the workers that it would meet, or would be the first.

        Raises:
            BadRequest: a wire version that this router has never heard of.
            Conflict: it pairs with none of the other role that serve its model. Those that drain don't count: they
                take no new request.
        """
        if newcomer.wire_version not in HISTORY:
            raise BadRequest(
                f"Worker {newcomer.worker_id} speaks wire version {newcomer.wire_version}, "
                f"the router knows {', '.join(map(str, sorted(HISTORY)))}.",
                param="wire_version",
                code="wire_version_mismatch",
            )
        others = [w for w in self.workers() if w.role is not newcomer.role and w.model == newcomer.model]
        others = [w for w in others if w.status.state is not WorkerState.DRAINING and w.worker_id != newcomer.worker_id]
        if any(w.is_static for w in others):
            return
        mismatch = find_mismatch(newcomer, [w.registration for w in others if w.registration is not None])
        if mismatch is not None:
            raise Conflict(mismatch, code="worker_mismatch")

    def tell_peers(self, worker: Worker) -> tuple[KVPeer, ...]:
        """The side channels that ``worker`` may read from, by worker id; it is remembered that it was told them.

        Those of all registered prefill workers that pair with it: one that drains, or whose engine is silent for a
        moment, may still hold blocks for it. None for a prefill worker.
        """
        mine = worker.registration
        if worker.role is WorkerRole.PREFILL or mine is None:
            return ()
        live = [
            w.registration
            for w in sorted(self.workers(), key=lambda w: w.worker_id)
            if w.role is WorkerRole.PREFILL and w.registration is not None
        ]
        peers = [prefill for prefill in live if is_pair(prefill, mine)]
        told_engines = frozenset(prefill.engine_id for prefill in peers)
        if told_engines != worker.told_engines:
            worker.told_engines = told_engines
            self.refresh()
        return tuple(KVPeer(engine_id=p.engine_id, host=p.kv_host, port=p.kv_port) for p in peers)

    def add_static(self, role: WorkerRole, url: str) -> Worker:
        """A worker known by URL alone, STARTING until its first good probe."""
        worker_id = f"{role.value}-" + re.sub(r"[^A-Za-z0-9.]+", "-", url.split("://", 1)[-1]).strip("-")
        starting = WorkerStatus(state=WorkerState.STARTING)
        worker = Worker(worker_id, STATIC_GENERATION, role, url, None, starting, seen_s=self.clock())
        self._workers[worker_id] = worker
        self.refresh()
        return worker

    def suspect(self, worker: Worker) -> None:
        """The worker could not be reached: it gets no new request before it is heard of again."""
        worker.is_suspect = True
        self.refresh()

    def observe_static(
        self,
        worker: Worker,
        *,
        model: str | None,
        max_model_len: int | None,
        other_models: tuple[str, ...] = (),
        dialect: Dialect = TANDEM,
    ) -> None:
        """A static worker's probe ended: ``model`` is its served name, or None where it can't serve now."""
        state = WorkerState.STARTING if model is None else WorkerState.READY
        known = (worker.status.state, worker.model, worker.other_models, worker.dialect)
        is_news = worker.is_suspect or known != (state, model, other_models, dialect)
        worker.status = WorkerStatus(state=state)
        worker.seen_s = self.clock()
        if model is not None:
            worker.model, worker.other_models, worker.dialect = model, other_models, dialect
            worker.max_model_len, worker.is_suspect = max_model_len, False
        if is_news:
            self.refresh()

    def remove(self, worker_id: str) -> None:
        """Raises: NotFound: no such worker, or a static one, which configuration alone can take away."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.is_static:
            raise NotFound(f"No registered worker is named {worker_id}.", code="worker_not_found")
        del self._workers[worker_id]
        self.refresh()

    def refresh(self) -> None:
        """Something has changed that decides who may be given what; whoever waits for that hears of it now."""
        self._pools = None
        if self.on_pools is not None:
            self.pools()

    def workers(self) -> Sequence[Worker]:
        """All known workers; those silent for longer than the ttl are forgotten first."""
        return self.pools().workers

    def pools(self) -> Pools:
        """Who may be given what now; to be asked for anew for each decision."""
        if self._pools is None or self.clock() > self._pools_end_s:
            return self._work_out(self.clock())
        return self._pools

    def _work_out(self, now_s: float) -> Pools:
        self._forget_silent(now_s - self.ttl_s)
        heard = [worker for worker in self._workers.values() if not worker.is_static]
        urls = {worker.url for worker in heard}
        # A static URL that also registers would otherwise be counted, and picked, twice.
        workers = [w for w in self._workers.values() if not (w.is_static and w.url in urls)]
        for worker in workers:
            end_wait(worker, now_s)
        self._pools = pools = Pools(workers)
        silence_s = min((worker.seen_s for worker in heard), default=inf) + self.ttl_s
        self._pools_end_s = min([silence_s, *(worker.breaker_end_s for worker in workers)])
        if self.on_pools is not None:
            self.on_pools(pools)
        return pools

    def _forget_silent(self, oldest_s: float) -> None:
        for worker in [w for w in self._workers.values() if not w.is_static and w.seen_s < oldest_s]:
            del self._workers[worker.worker_id]
            self._fenced.pop(worker.worker_id, None)

    def _replace(self, registration: WorkerRegistration, status: WorkerStatus) -> Worker:
        old = self._workers.get(registration.worker_id)
        if old is not None and not old.is_static:
            fenced = self._fenced.setdefault(registration.worker_id, deque(maxlen=NUM_FENCED_GENERATIONS))
            fenced.append(old.generation)
        worker = Worker(
            registration.worker_id,
            registration.generation,
            registration.role,
            registration.url,
            registration.model,
            status,
            registration,
        )
        self._workers[registration.worker_id] = worker
        return worker

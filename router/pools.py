"""Which workers may be given what, worked out once for each change of the registry and then only looked up.

An open breaker takes its worker out, unless it would take the last one: where every worker that could serve has an open
one, each of them lets one request through at once. A role is out of service only while all of these are under way.
"""

from collections import defaultdict
from collections.abc import Sequence

from router.workers import BreakerState, Worker
from wire.worker import WorkerRole

_PASSING = (BreakerState.CLOSED, BreakerState.HALF_OPEN)


class Pools:
    """The workers as they were when this was made; whoever changes one makes another.

    Args:
        workers: all known workers, each once.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = list(workers)
        prefills: dict[str | None, list[Worker]] = defaultdict(list)
        decodes: dict[str | None, list[Worker]] = defaultdict(list)
        self._paired_prefills: dict[str | None, list[Worker]] = {}
        self._paired_decodes: dict[tuple[str, str | None], list[Worker]] = {}
        self.models: dict[str, Worker] = {}
        """Served model names, each with one worker that serves it, whatever the breakers say."""
        for worker in self.workers:
            if worker.is_usable:
                of_role = prefills if worker.role is WorkerRole.PREFILL else decodes
                of_role[None].append(worker)
                for model in worker.models:
                    of_role[model].append(worker)
                    self.models[model] = worker
        self._all_prefills, self._all_decodes = dict(prefills), dict(decodes)
        self._prefills = {model: _passing(ready) for model, ready in prefills.items()}
        self._decodes = {model: _passing(ready) for model, ready in decodes.items()}

    def usable(self, role: WorkerRole, model: str | None = None) -> Sequence[Worker]:
        """Workers of a role that may be given a request for ``model`` (None: whichever)."""
        return (self._prefills if role is WorkerRole.PREFILL else self._decodes).get(model, ())

    def usable_prefills(self, model: str | None = None) -> Sequence[Worker]:
        """Usable prefill workers for ``model`` whose handoffs at least one usable decode worker can take."""
        found = self._paired_prefills.get(model)
        if found is None:
            prefills = self._all_prefills.get(model, ())
            found = _passing([prefill for prefill in prefills if self.usable_decodes(prefill, model)])
            if model is None or model in self.models:  # what clients call a model must not fill the memory
                self._paired_prefills[model] = found
        return found

    def usable_decodes(self, prefill: Worker, model: str | None = None) -> Sequence[Worker]:
        """Usable decode workers for ``model`` that can take ``prefill``'s handoffs."""
        key = (prefill.worker_id, model)
        found = self._paired_decodes.get(key)
        if found is None:
            decodes = self._all_decodes.get(model, ())
            found = _passing([decode for decode in decodes if decode.may_read_from(prefill)])
            if model is None or model in self.models:
                self._paired_decodes[key] = found
        return found

    def missing_roles(self) -> list[WorkerRole]:
        """Roles without a worker that can serve; with both there but no two that pair, both.

        Breakers don't count: they are about single requests, and this is about whether to send any here.
        """
        prefills, decodes = self._all_prefills.get(None, ()), self._all_decodes.get(None, ())
        missing = [role for role, ready in ((WorkerRole.PREFILL, prefills), (WorkerRole.DECODE, decodes)) if not ready]
        if missing or any(decode.may_read_from(prefill) for prefill in prefills for decode in decodes):
            return missing
        return list(WorkerRole)


def _passing(workers: list[Worker]) -> list[Worker]:
    """Those whose breaker lets a request through; where each one's is open, all that have none under way."""
    passing = [worker for worker in workers if worker.breaker in _PASSING]
    return passing or [worker for worker in workers if worker.breaker is BreakerState.OPEN]

"""Which workers may be given what, worked out once for each change of the registry and then only looked up."""

from collections import defaultdict
from collections.abc import Sequence

from router.workers import Worker
from wire.worker import WorkerRole


class Pools:
    """The workers as they were when this was made; whoever changes one makes another.

    Args:
        workers: all known workers, each once.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = list(workers)
        self._prefills: dict[str | None, list[Worker]] = defaultdict(list)
        self._decodes: dict[str | None, list[Worker]] = defaultdict(list)
        self._paired_prefills: dict[str | None, list[Worker]] = {}
        self._paired_decodes: dict[tuple[str, str | None], list[Worker]] = {}
        self.models: dict[str, Worker] = {}
        """Served model names, each with one usable worker that serves it."""
        for worker in self.workers:
            if worker.is_usable:
                of_role = self._prefills if worker.role is WorkerRole.PREFILL else self._decodes
                of_role[None].append(worker)
                for model in worker.models:
                    of_role[model].append(worker)
                    self.models[model] = worker

    def usable(self, role: WorkerRole, model: str | None = None) -> Sequence[Worker]:
        """Workers of a role that may be given a request for ``model`` (None: whichever)."""
        return (self._prefills if role is WorkerRole.PREFILL else self._decodes).get(model, ())

    def usable_prefills(self, model: str | None = None) -> Sequence[Worker]:
        """Usable prefill workers for ``model`` whose handoffs at least one usable decode worker can take."""
        found = self._paired_prefills.get(model)
        if found is None:
            decodes = self.usable(WorkerRole.DECODE, model)
            prefills = self.usable(WorkerRole.PREFILL, model)
            found = [prefill for prefill in prefills if any(decode.may_read_from(prefill) for decode in decodes)]
            if model is None or model in self.models:  # what clients call a model must not fill the memory
                self._paired_prefills[model] = found
        return found

    def usable_decodes(self, prefill: Worker, model: str | None = None) -> Sequence[Worker]:
        """Usable decode workers for ``model`` that can take ``prefill``'s handoffs."""
        key = (prefill.worker_id, model)
        found = self._paired_decodes.get(key)
        if found is None:
            found = [decode for decode in self.usable(WorkerRole.DECODE, model) if decode.may_read_from(prefill)]
            if model is None or model in self.models:
                self._paired_decodes[key] = found
        return found

    def missing_roles(self) -> list[WorkerRole]:
        """Roles without a usable worker; with both there but no two that pair, both."""
        missing = [role for role in WorkerRole if not self.usable(role)]
        if missing or self.usable_prefills():
            return missing
        return list(WorkerRole)

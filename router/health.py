"""Probes static workers, which send no heartbeats: can they serve, and under which model names."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from pydantic import BaseModel, Field, ValidationError

from router.dialects import NIXL, TANDEM, Dialect
from router.registry import WorkerRegistry
from router.worker_client import WorkerBroken, WorkerClient, WorkerTimeout, WorkerUnreachable
from router.workers import Worker

STATUS_PATH = "/tandem/status"

logger = logging.getLogger(__name__)


class _ModelCard(BaseModel):
    id: str = Field(min_length=1)
    max_model_len: int | None = None


class _ModelList(BaseModel):
    data: list[_ModelCard] = Field(min_length=1)


# A busy worker may answer late, which is no reason to send it nothing; one that hangs is found out after this many.
NUM_SILENT_PROBES = 3


class HealthProber:
    """Probes each static worker every ``interval_s``.

    A refusal or a lost connection counts at once, silence only when repeated.

    Args:
        timeout_s: bound on each of a probe's two requests.
        sleep: waits between probes; injected so that tests need not wait.
    """

    def __init__(
        self,
        *,
        registry: WorkerRegistry,
        client: WorkerClient,
        headers: Mapping[str, str],
        interval_s: float,
        timeout_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._registry, self._client, self._headers = registry, client, headers
        self._interval_s, self._timeout_s, self._sleep = interval_s, timeout_s, sleep
        self._num_silent: dict[str, int] = {}

    async def run(self, workers: Sequence[Worker]) -> None:
        """Probe until cancelled."""
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(self._run_one(worker))

    async def _run_one(self, worker: Worker) -> None:
        while True:
            await self.probe(worker)
            await self._sleep(self._interval_s)

    async def probe(self, worker: Worker) -> None:
        """One probe; its outcome goes to the registry."""
        was_usable = worker.is_usable
        dialect = None
        try:
            cards = await self._ask(worker)
            if cards and not was_usable:
                dialect = await self._find_dialect(worker)
        except WorkerTimeout:
            self._num_silent[worker.worker_id] = self._num_silent.get(worker.worker_id, 0) + 1
            if self._num_silent[worker.worker_id] < NUM_SILENT_PROBES:
                return
            cards = []
        except (WorkerUnreachable, WorkerBroken):
            cards = []
        else:
            self._num_silent[worker.worker_id] = 0
        self._registry.observe_static(
            worker,
            model=cards[0].id if cards else None,
            max_model_len=cards[0].max_model_len if cards else None,
            other_models=tuple(dict.fromkeys(card.id for card in cards[1:] if card.id != cards[0].id)),
            dialect=worker.dialect if dialect is None else dialect,
        )
        if worker.is_usable != was_usable:
            logger.info("worker %s is %s", worker.worker_id, "ready" if worker.is_usable else "not ready")

    async def _find_dialect(self, worker: Worker) -> Dialect:
        """Tandem's workers have a route that stock vLLM has not. Raises: as ``get``."""
        answer = await self._client.get(worker.url + STATUS_PATH, self._headers, timeout_s=self._timeout_s)
        return NIXL if answer.status == 404 else TANDEM

    async def _ask(self, worker: Worker) -> list[_ModelCard]:
        """The models that it serves, its base model's name first; none where it can't serve. Raises: as ``get``."""
        try:
            health = await self._client.get(worker.url + "/health", self._headers, timeout_s=self._timeout_s)
            if health.status != 200:
                return []
            models = await self._client.get(worker.url + "/v1/models", self._headers, timeout_s=self._timeout_s)
            return _ModelList.model_validate_json(models.body).data if models.status == 200 else []
        except ValidationError:
            logger.warning("worker %s answers /v1/models with something else", worker.worker_id)
            return []

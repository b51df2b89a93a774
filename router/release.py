"""Gives back leases that no decode worker will read, in the background, so that prefill's blocks are free at once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from pydantic import ValidationError

from router.dialects import nixl_release_body
from router.endpoints import Endpoint
from router.metrics import RouterMetrics
from router.worker_client import WorkerAnswer, WorkerClient
from wire.errors import ServingError, UpstreamError
from wire.handoff import ReleaseReply, ReleaseRequest

RELEASE_PATH = "/tandem/release"
# Seconds before each further attempt. The lease ends by itself after its 30 s, so trying for longer gains little.
RETRY_DELAYS_S = (0.2, 1.0, 3.0)
# An aborted prefill may still finish and grant its lease just after a release found none: look once more.
SECOND_LOOK_S = 0.5

logger = logging.getLogger(__name__)


class ReleaseReason(StrEnum):
    """Why nobody will read a handoff."""

    ABANDONED = "abandoned"
    """The client left, its time was up, or the router is stopping."""
    PREFILL_FAILED = "prefill_failed"
    DECODE_REFUSED = "decode_refused"
    """The client's request, not the handoff."""
    HANDOFF_REFUSED = "handoff_refused"
    DECODE_FAILED = "decode_failed"


class Release(NamedTuple):
    """How one handoff is given back."""

    url: str
    body: bytes
    was_live: Callable[[WorkerAnswer], bool]
    """Whether there was something to give back, by the answer. Raises: UpstreamError: that did not work."""


def tandem_release(prefill_url: str, handoff_id: str) -> Release:
    """By its id, at the worker that holds it."""
    body = ReleaseRequest(handoff_id=handoff_id).model_dump_json(exclude_none=True).encode()
    return Release(prefill_url + RELEASE_PATH, body, _was_released)


def nixl_release(decode_url: str, handoff_json: str) -> Release:
    """By a decode worker of stock vLLM, which tells prefill when it refuses a request (``router.dialects``)."""
    return Release(decode_url + Endpoint.COMPLETIONS.url_path, nixl_release_body(handoff_json), _was_refused)


def _was_released(answer: WorkerAnswer) -> bool:
    if answer.status != 200:
        raise UpstreamError(f"the release was answered with {answer.status}")
    try:
        return ReleaseReply.model_validate_json(answer.body).released
    except ValidationError as error:
        raise UpstreamError("the release's answer is not one") from error


def _was_refused(answer: WorkerAnswer) -> bool:
    if not 400 <= answer.status < 500:
        raise UpstreamError(f"the release was answered with {answer.status}")
    return True


class Releaser:
    """Sends releases as tracked tasks; ``aclose`` waits for those under way.

    Args:
        timeout_s: bound on one attempt.
        sleep: waits between attempts; injected so that tests need not wait.
    """

    def __init__(
        self,
        *,
        client: WorkerClient,
        metrics: RouterMetrics,
        headers: Mapping[str, str],
        timeout_s: float,
        retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client, self._metrics, self._headers = client, metrics, headers
        self._timeout_s, self._retry_delays_s, self._sleep = timeout_s, retry_delays_s, sleep
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_pending(self) -> int:
        return len(self._tasks)

    def release(self, release: Release, reason: ReleaseReason, *, look_again: bool) -> None:
        """Start releasing; returns at once, so it may be called while a cancellation unwinds.

        ``look_again``: prefill had not answered, so the lease may come into being after the first release.
        """
        self._metrics.count_release(reason)
        task = asyncio.create_task(self._run(release, look_again))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self, timeout_s: float) -> None:
        """Wait for pending releases, at most ``timeout_s``; what is left then is logged, counted and dropped."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in late:
            self._metrics.count_release_failure()
            task.cancel()
        if late:
            logger.warning("stopped with %d releases unanswered; their leases expire by themselves", len(late))
            await asyncio.wait(late)

    async def _run(self, release: Release, look_again: bool) -> None:
        try:
            was_live = await self._send_with_retries(release)
            if look_again and not was_live:
                await self._sleep(SECOND_LOOK_S)
                await self._send_with_retries(release)
        except ServingError as error:
            self.note_failure(f"{release.url}: {error.message}")

    def note_failure(self, why: str) -> None:
        """A handoff was not given back; its lease ends by itself."""
        self._metrics.count_release_failure()
        logger.warning("a handoff was not released: %s", why)

    async def _send_with_retries(self, release: Release) -> bool:
        for delay_s in self._retry_delays_s:
            try:
                return await self._send(release)
            except ServingError:
                await self._sleep(delay_s)
        return await self._send(release)

    async def _send(self, release: Release) -> bool:
        return release.was_live(
            await self._client.post(release.url, release.body, self._headers, timeout_s=self._timeout_s)
        )

"""Tells the router, every few seconds, that this worker is there and how it is."""

import asyncio
import logging

import httpx
from pydantic import ValidationError

from vllm_engine.identity import raise_if_refused
from vllm_engine.state import WorkerProcess
from wire.errors import TransferFailed
from wire.worker import HeartbeatReply, WorkerHeartbeat

logger = logging.getLogger("vllm.tandem.worker")


class Heartbeat:
    """Registers with the router and keeps telling it; a router that is away is tried again at the next beat.

    Each answer names the engines that this worker may read from. Only a change between reachable and unreachable is
    logged.
    """

    def __init__(self, process: WorkerProcess, client: httpx.AsyncClient) -> None:
        self._process, self._client = process, client
        self._is_reachable: bool | None = None
        # A router that was restarted hears of its workers in any order and may refuse one for a moment.
        self._was_registered = False
        self._one_at_a_time = asyncio.Lock()

    async def run(self) -> None:
        """Beat for ever.

        Raises:
            RegistrationRefused: the router can't use this worker, and never has.
        """
        while True:
            await self.beat()
            await asyncio.sleep(self._process.config.heartbeat_s)

    async def beat(self) -> None:
        """One heartbeat."""
        async with self._one_at_a_time:
            body = WorkerHeartbeat(registration=self._process.registration(), status=await self._process.status())
            try:
                reply = await self._post("/internal/workers", body.model_dump_json())
                if not self._was_registered:
                    raise_if_refused(reply)
                reply.raise_for_status()
                peers = HeartbeatReply.model_validate_json(reply.content).peers
            except (httpx.HTTPError, ValidationError) as e:
                self._note(False, f"{type(e).__name__}: {e}")
                return
            self._note(True, "")
            self._was_registered = True
            try:
                await self._process.set_peers(peers)
            except TransferFailed as e:
                logger.warning("the engine does not know its %d peers yet: %s", len(peers), e)

    async def leave(self) -> None:
        """Tell the router that this worker is gone, so that it need not wait for the silence."""
        try:
            await self._client.delete(
                f"{self._process.config.router_url}/internal/workers/{self._process.config.worker_id}",
                headers=self._process.identity.headers(),
            )
        except httpx.HTTPError as e:
            logger.info("router not told of our leaving: %s", type(e).__name__)

    async def _post(self, path: str, body: str) -> httpx.Response:
        return await self._client.post(
            f"{self._process.config.router_url}{path}",
            content=body,
            headers=self._process.identity.headers(),
        )

    def _note(self, is_reachable: bool, reason: str) -> None:
        if is_reachable != self._is_reachable:
            if is_reachable:
                logger.info("registered with the router at %s", self._process.config.router_url)
            else:
                logger.warning("router at %s can't be told: %s", self._process.config.router_url, reason)
        self._is_reachable = is_reachable

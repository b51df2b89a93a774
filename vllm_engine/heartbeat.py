"""Tells the router, every few seconds, that this worker is there and how it is."""

import asyncio
import logging

import httpx

from vllm_engine.state import WorkerProcess
from wire.worker import WorkerHeartbeat

logger = logging.getLogger("vllm.tandem.worker")


class Heartbeat:
    """Registers with the router and keeps telling it; a router that is away is tried again at the next beat.

    Only a change between reachable and unreachable is logged.
    """

    def __init__(self, process: WorkerProcess, client: httpx.AsyncClient) -> None:
        self._process, self._client = process, client
        self._is_reachable: bool | None = None

    async def run(self) -> None:
        while True:
            await self.beat()
            await asyncio.sleep(self._process.config.heartbeat_s)

    async def beat(self) -> None:
        """One heartbeat."""
        body = WorkerHeartbeat(registration=self._process.registration(), status=await self._process.status())
        try:
            reply = await self._client.post(
                f"{self._process.config.router_url}/internal/workers",
                content=body.model_dump_json(),
                headers={"content-type": "application/json", "authorization": f"Bearer {self._process.token}"},
            )
            reply.raise_for_status()
        except httpx.HTTPError as e:
            self._note(False, f"{type(e).__name__}: {e}")
        else:
            self._note(True, "")

    async def leave(self) -> None:
        """Tell the router that this worker is gone, so that it need not wait for the silence."""
        try:
            await self._client.delete(
                f"{self._process.config.router_url}/internal/workers/{self._process.config.worker_id}",
                headers={"authorization": f"Bearer {self._process.token}"},
            )
        except httpx.HTTPError as e:
            logger.info("router not told of our leaving: %s", type(e).__name__)

    def _note(self, is_reachable: bool, reason: str) -> None:
        if is_reachable != self._is_reachable:
            if is_reachable:
                logger.info("registered with the router at %s", self._process.config.router_url)
            else:
                logger.warning("router at %s can't be told: %s", self._process.config.router_url, reason)
        self._is_reachable = is_reachable

"""What this worker process knows of itself, read by its routes and its heartbeat."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from prometheus_client import REGISTRY
from vllm.engine.protocol import EngineClient

from kv_transfer import side_channel
from vllm_engine.identity import WorkerIdentity
from wire.errors import TransferFailed
from wire.worker import KVPeer, WorkerRegistration, WorkerState, WorkerStatus
from wire.worker_config import WorkerConfig

logger = logging.getLogger("vllm.tandem.worker")

_SIDE_CHANNEL_TIMEOUT_S = 2.0
# The side channel's thread waits for the interpreter while the engine computes, seconds on a loaded laptop. Only an
# engine that is silent for longer than that can't serve.
_SILENCE_LIMIT_S = 20.0
_COUNTERS = {
    "kv_handoffs_total": "tandem_kv_reads_total",
    "kv_blocks_total": "tandem_kv_blocks_total",
    "kv_descriptors_total": "tandem_kv_descriptors_total",
    "kv_bytes_total": "tandem_kv_bytes_total",
    "kv_failures_total": "tandem_kv_failures_total",
}
_GAUGES = {
    "num_requests_running": "vllm:num_requests_running",
    "num_requests_waiting": "vllm:num_requests_waiting",
}


@dataclass(slots=True)
class WorkerProcess:
    """Shared by routes, heartbeat and drain; lives in the API process, used from its event loop only."""

    config: WorkerConfig
    identity: WorkerIdentity
    engine: EngineClient
    state: WorkerState = WorkerState.STARTING
    row_bytes: int = 0
    last_answer_s: float = 0.0
    num_leases: int = 0
    peers: frozenset[KVPeer] = frozenset()
    refresh_peers: Callable[[], Awaitable[None]] | None = None

    async def ask_engine(self, verb: bytes, payload: bytes = b"") -> bytes:
        """One question to the connector in the engine core, by its side channel.

        Raises:
            TransferFailed: it did not answer in time or refused.
        """
        kv = self.config.kv_transfer
        return await asyncio.to_thread(
            side_channel.ask,
            kv.host,
            kv.port,
            verb,
            payload,
            token=self.identity.token,
            timeout_s=_SIDE_CHANNEL_TIMEOUT_S,
        )

    async def connector_status(self) -> dict[str, int]:
        """Number of leases and bytes of a row, as the connector knows them now.

        Raises:
            TransferFailed: see ask_engine.
        """
        status: dict[str, int] = json.loads(await self.ask_engine(side_channel.STATUS))
        self.last_answer_s, self.num_leases = time.monotonic(), status["num_leases"]
        return status

    async def can_serve(self) -> bool:
        """Whether this worker takes requests and its engine answers, or did so a moment ago."""
        try:
            await self.connector_status()
        except TransferFailed as e:
            logger.warning("%s", e)
        is_silent = time.monotonic() - self.last_answer_s > _SILENCE_LIMIT_S
        return self.state is WorkerState.READY and not is_silent

    def registration(self) -> WorkerRegistration:
        c = self.config
        return WorkerRegistration(
            worker_id=c.worker_id,
            generation=self.identity.generation,
            role=c.role,
            url=c.url,
            model=c.served_model_name,
            max_model_len=c.max_model_len,
            block_size=c.block_size,
            row_bytes=self.row_bytes,
            parallelism=c.parallelism,
            engine_id=self.identity.engine_id,
            kv_host=c.kv_transfer.host,
            kv_port=c.kv_transfer.port,
            fingerprint=self.identity.fingerprint,
            handoff_key=self.identity.keys.signs,
            handoff_keys=self.identity.keys.verifies,
        )

    async def set_peers(self, peers: tuple[KVPeer, ...]) -> None:
        """Tell the connector which engines are registered now, if that has changed.

        Raises:
            TransferFailed: see ask_engine.
        """
        if frozenset(peers) == self.peers:
            return
        await self.ask_engine(side_channel.PEERS, json.dumps([peer.model_dump() for peer in peers]).encode())
        self.peers = frozenset(peers)

    async def is_registered(self, engine_id: str, host: str, port: int) -> bool:
        """Whether a handoff may name that engine; a new one may have registered since the last heartbeat."""
        if f"{host}:{port}" in self.config.kv_transfer.extra_peers:
            return True
        peer = KVPeer(engine_id=engine_id, host=host, port=port)
        if peer not in self.peers and self.refresh_peers is not None:
            await self.refresh_peers()
        return peer in self.peers

    async def status(self) -> WorkerStatus:
        """A snapshot; a connector that does not answer shows as an engine that can't serve."""
        state = self.state
        if not await self.can_serve() and state is WorkerState.READY:
            state = WorkerState.STARTING
        numbers = {field: int(_sum_of(name)) for field, name in (_COUNTERS | _GAUGES).items()}
        return WorkerStatus(
            state=state, num_leases=self.num_leases, kv_cache_usage=_sum_of("vllm:kv_cache_usage_perc"), **numbers
        )


def _sum_of(name: str) -> float:
    """Sum over all label values of one metric of this process."""
    return sum(
        sample.value
        for family in REGISTRY.collect()
        if name.removesuffix("_total") == family.name
        for sample in family.samples
        if sample.name == name
    )

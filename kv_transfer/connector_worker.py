"""The connector inside each worker rank: owns the NIXL agent and its reads; every call comes from the rank's thread."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from kv_transfer import handshake, side_channel
from kv_transfer.agent import KVAgent, Read, ReadState, RowReader, RowRegion
from kv_transfer.cache_row import block_size_of, region_of, row_of
from kv_transfer.connector_stats import RowConnectorStats
from kv_transfer.held_blocks import HeldBlocks
from kv_transfer.plan import plan_reads
from kv_transfer.step import HelloMetadata, Pull, StepMetadata
from wire.errors import HandshakeMismatch, LeaseExpired, TransferError, TransferFailed
from wire.handoff import KVHandoff
from wire.worker_config import KVTransferConfig

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger("vllm.tandem.kv_transfer")


# An engine that only waits for readers polls in a busy loop. The pause between two polls grows with the age of the
# youngest hold, to a limit that a new request would not notice.
IDLE_PAUSE_PER_AGE = 0.05
MAX_IDLE_PAUSE_S = 0.005


class WorkerSide:
    """One rank's reads (decode) and held blocks (prefill)."""

    def __init__(
        self,
        vllm_config: "VllmConfig",
        kv_cache_config: "KVCacheConfig",
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        transfer = vllm_config.kv_transfer_config
        self._config = KVTransferConfig.model_validate(transfer.kv_connector_extra_config)
        self._engine_id: str = transfer.engine_id
        self._tp_size: int = vllm_config.parallel_config.tensor_parallel_size
        self._tp_rank: int = get_tensor_model_parallel_rank()
        self._layout = row_of(kv_cache_config)
        self._block_size = block_size_of(kv_cache_config)
        self._num_blocks: int = kv_cache_config.num_blocks
        self._clock, self._wall_clock = clock, wall_clock
        self._agent = KVAgent(
            f"{self._engine_id}-{self._tp_rank}",
            self._config.nixl_backends,
            enable_progress_thread=bool(self._config.enable_progress_thread),
        )
        self._hello: handshake.Hello | None = None
        # The handshake waits for the network, so it has a thread of its own; the step only looks whether it is done.
        self._dialler = ThreadPoolExecutor(max_workers=4, thread_name_prefix="kv-handshake")
        self._dialling: dict[str, Future[bytes]] = {}
        self._unreachable: dict[str, tuple[float, Exception]] = {}  # engine id -> until when, and why
        self._readers: dict[str, RowReader] = {}
        self._waiting: list[Pull] = []
        self._reading: dict[str, tuple[Pull, Read]] = {}
        self._failed: set[str] = set()
        self._held = HeldBlocks(clock)
        self._is_idle = False
        self._stats = RowConnectorStats()

    # Start-up

    def register(self, kv_caches: "dict[str, torch.Tensor]") -> None:
        """Check that the bound tensors form the row, and register it once.

        Raises:
            ValueError: the tensors do not lie as the row says.
        """
        region = region_of(self._layout, self._num_blocks, kv_caches)
        metadata = self._agent.register(region)
        self._hello = handshake.Hello(
            engine_id=self._engine_id,
            tp_size=self._tp_size,
            tp_rank=self._tp_rank,
            block_size=self._block_size,
            layout=self._layout,
            num_blocks=region.num_blocks,
            base_address=region.base_address,
            device_id=region.device_id,
            memory=region.memory,
            agent_metadata=metadata,
        )
        logger.info(
            "KV rows: %d blocks of %d bytes, %d pages a row, one registration",
            region.num_blocks,
            region.row_bytes,
            len(self._layout.pages),
        )

    def hello(self) -> HelloMetadata:
        assert self._hello is not None, "register first"
        return HelloMetadata(handshake.encode(self._hello))

    # Each step

    def start(self, meta: StepMetadata) -> None:
        """Take this step's orders; posts what can be posted and waits for nothing."""
        for hold in meta.holds:
            self._held.hold(hold.request_id, hold.handoff_id, hold.num_readers)
        self._held.drop(meta.drops)
        self._is_idle = meta.is_idle
        self._waiting.extend(meta.pulls)
        self._post_waiting()

    def results(self) -> KVConnectorTransferResults:
        """What has finished since the last step."""
        self._pause_when_idle()
        self._post_waiting()
        out = KVConnectorTransferResults()
        self._collect_reads(out)
        self._collect_holds(out)
        self._drive_agent()
        return out

    def _drive_agent(self) -> None:
        if not self._is_idle:
            # What this step computed may be handed off: the hold arrives here only after the next forward, and the
            # reader must not wait for that. The agent lingers.
            self._agent.set_active(True)
        self._agent.set_active(bool(self._held or self._reading or self._waiting))

    def take_stats(self) -> RowConnectorStats | None:
        return self._stats.take()

    # Decode: reading

    def _post_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for pull in waiting:
            try:
                reader = self._reader_of(pull.handoff)
                if reader is None:
                    self._waiting.append(pull)
                elif pull.block_ids:
                    self._post(pull, reader)
                else:
                    self._agent.notify(reader.peer, self._note(pull))
            except Exception as e:  # noqa: BLE001 - one bad peer must fail its own requests, not the engine
                self._fail(pull, e)

    def _post(self, pull: Pull, reader: RowReader) -> None:
        self._check_lease(pull.handoff)
        if max(pull.remote_block_ids) >= reader.peer_blocks:
            raise TransferFailed(f"the handoff names block {max(pull.remote_block_ids)} of {reader.peer_blocks}")
        read = self._agent.read(reader, pull.block_ids, pull.remote_block_ids, self._note(pull))
        self._reading[pull.request_id] = (pull, read)
        self._stats.sample("queue_seconds", self._clock() - pull.asked_s)

    def _note(self, pull: Pull) -> bytes:
        return f"{pull.handoff.handoff_id} {pull.request_id}".encode()

    def _check_lease(self, handoff: KVHandoff) -> None:
        if self._wall_clock() >= handoff.lease_expires_unix_s:
            self._stats.count("expired_reads")
            raise LeaseExpired(f"the lease of handoff {handoff.handoff_id} ran out before its blocks were read")

    def _reader_of(self, handoff: KVHandoff) -> RowReader | None:
        """The peer's rows, or None while the handshake is under way."""
        engine_id = handoff.remote_engine_id
        if (reader := self._readers.get(engine_id)) is not None:
            return reader
        if engine_id in self._unreachable:
            until_s, reason = self._unreachable[engine_id]
            if self._clock() < until_s:
                raise TransferFailed(f"engine {engine_id} did not answer a moment ago: {reason}")
            del self._unreachable[engine_id]
        if (dial := self._dialling.get(engine_id)) is None:
            self._dialling[engine_id] = self._dialler.submit(
                side_channel.ask,
                handoff.remote_host,
                handoff.remote_port,
                side_channel.HELLO,
                timeout_s=self._config.handshake_timeout_s,
            )
            return None
        if not dial.done():
            return None
        del self._dialling[engine_id]
        if (error := dial.exception()) is not None:
            # Those that wait for the same peer fail with it, instead of waiting for a dial of their own each.
            until_s = self._clock() + self._config.handshake_timeout_s
            self._unreachable[engine_id] = (until_s, TransferFailed(str(error)))
            raise error
        reader = self._readers[engine_id] = self._connect(dial.result(), engine_id)
        return reader

    def _connect(self, reply: bytes, engine_id: str) -> RowReader:
        assert self._hello is not None
        hellos = handshake.decode_all(reply)
        if len(hellos) != self._tp_size:
            raise HandshakeMismatch(f"prefill has {len(hellos)} ranks, decode {self._tp_size}")
        theirs = hellos[self._tp_rank]
        handshake.check_peer(self._hello, theirs, engine_id=engine_id)
        pieces = plan_reads(theirs.layout, self._layout)
        rows = RowRegion(
            theirs.base_address, theirs.layout.row_bytes, theirs.num_blocks, theirs.device_id, theirs.memory
        )
        reader = self._agent.connect(theirs.agent_metadata, rows, pieces)
        logger.info("peer %s: %d piece(s) a block", engine_id, len(pieces))
        return reader

    def _fail(self, pull: Pull, error: Exception) -> None:
        level = logging.WARNING if isinstance(error, TransferError) else logging.ERROR
        logger.log(
            level,
            "handoff %s failed: %s: %s",
            pull.handoff.handoff_id,
            type(error).__name__,
            error,
            exc_info=None if isinstance(error, TransferError) else error,
        )
        self._stats.count("failures")
        if pull.block_ids:
            self._failed.add(pull.request_id)

    def _collect_reads(self, out: KVConnectorTransferResults) -> None:
        for request_id, (pull, read) in list(self._reading.items()):
            state = self._agent.state(read)
            if state is ReadState.PENDING:
                continue
            del self._reading[request_id]
            try:
                self._finish(pull, read, state)
            except TransferError as e:
                self._fail(pull, e)
            else:
                out.finished_recving.add(request_id)
        # vLLM wants failed loads in both sets: the request leaves its wait, and its policy decides what follows.
        out.finished_recving |= self._failed
        out.failed_recving |= self._failed
        self._failed = set()

    def _finish(self, pull: Pull, read: Read, state: ReadState) -> None:
        if state is ReadState.FAILED:
            self._agent.abandon(read)
            raise TransferFailed(f"NIXL reports an error for handoff {pull.handoff.handoff_id}")
        telemetry = self._agent.finish(read)
        self._check_lease(pull.handoff)  # a read that ends after the deadline may hold another request's bytes
        self._stats.record_read(telemetry, num_blocks=len(pull.block_ids))
        logger.debug(
            "handoff %s: %d blocks, %d descriptors, %d bytes in %.6f s",
            pull.handoff.handoff_id,
            len(pull.block_ids),
            telemetry.num_descriptors,
            telemetry.num_bytes,
            telemetry.transfer_s,
        )

    # Prefill: holding

    def _pause_when_idle(self) -> None:
        if self._is_idle and not (self._waiting or self._reading):
            time.sleep(min(self._held.quiet_s() * IDLE_PAUSE_PER_AGE, MAX_IDLE_PAUSE_S))

    def _collect_holds(self, out: KVConnectorTransferResults) -> None:
        for note in self._agent.notes():
            handoff_id, _, reader = note.decode().partition(" ")
            self._held.note_reader(handoff_id, reader)
        out.finished_sending |= self._held.take_finished()

    def shutdown(self) -> None:
        self._dialler.shutdown(wait=False, cancel_futures=True)
        for reader in self._readers.values():
            self._agent.disconnect(reader)
        self._readers.clear()
        self._agent.close()

"""The connector inside each worker rank: registers the rows, passes orders and outcomes between vLLM and the mover."""

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from kv_transfer import handshake
from kv_transfer.agent import KVAgent
from kv_transfer.cache_row import region_of, row_of
from kv_transfer.connector_stats import RowConnectorStats
from kv_transfer.fence import Fence
from kv_transfer.mover import Mover
from kv_transfer.peer_rows import ConnectedPeers
from kv_transfer.pulls import NUM_SCRATCH_WORDS, PullsInFlight
from kv_transfer.settings import ConnectorSettings
from kv_transfer.step import DrainNews, HelloMetadata, StepMetadata
from kv_transfer.transport import TransportReader
from kv_transfer.transport_watch import TransportWatch

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger("vllm.tandem.kv_transfer")

# An engine that has nothing to compute and only waits for transfers polls in a busy loop. It waits here instead, for no
# longer than a new request would notice, and wakes as soon as something ends.
IDLE_WAIT_S = 0.005


class WorkerSide:
    """One rank's rows; every call comes from the rank's thread, the mover does the work in its own."""

    def __init__(
        self,
        vllm_config: "VllmConfig",
        kv_cache_config: "KVCacheConfig",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = ConnectorSettings.from_vllm(vllm_config)
        self._layout = row_of(kv_cache_config)
        self._num_blocks: int = kv_cache_config.num_blocks
        self._tp_rank: int = get_tensor_model_parallel_rank()
        self._agent = KVAgent(
            f"{settings.engine_id}-{self._tp_rank}",
            settings.config.nixl_backends,
            enable_progress_thread=settings.config.enable_progress_thread,
        )
        self._fence = Fence()
        scratch = np.zeros(NUM_SCRATCH_WORDS, dtype=np.uint64)
        self._agent.register_words(self._fence.words, scratch)
        peers = ConnectedPeers(
            self._agent,
            self._layout,
            tp_size=settings.tp_size,
            tp_rank=self._tp_rank,
            num_kv_heads=settings.num_kv_heads,
        )
        watch = TransportWatch(
            TransportReader(os.environ),
            settings.config.required_transports,
            refuses=settings.config.on_wrong_transport == "refuse",
        )
        pulls = PullsInFlight(
            self._agent, peers, scratch, watch=watch, read_timeout_s=settings.config.read_timeout_s, clock=clock
        )
        self._mover = Mover(self._agent, self._fence, peers, pulls, clock=clock)
        self._hello: handshake.Hello | None = None
        self._is_idle = False
        self._stats: RowConnectorStats | None = None
        self._news: DrainNews | None = None
        self._last_orders: StepMetadata | None = None

    # Start-up

    def register(self, kv_caches: "dict[str, torch.Tensor]") -> None:
        """Check that the bound tensors form the row, register it once, and start moving.

        Raises:
            ValueError: the tensors do not lie as the row says.
        """
        region = region_of(self._layout, self._num_blocks, kv_caches)
        self._hello = handshake.Hello(
            tp_rank=self._tp_rank,
            layout=self._layout,
            num_blocks=region.num_blocks,
            base_address=region.base_address,
            device_id=region.device_id,
            memory=region.memory,
            fence_address=self._fence.words.ctypes.data,
            num_fence_words=len(self._fence.words),
            agent_metadata=self._agent.register(region),
        )
        self._mover.start(partial(torch.cuda.set_device, region.device_id) if region.memory == "VRAM" else _nothing)
        logger.info(
            "KV rows: %d blocks of %d bytes, %d pages a row, one registration",
            region.num_blocks,
            region.row_bytes,
            len(self._layout.pages),
        )

    def hello(self) -> HelloMetadata:
        assert self._hello is not None, "register first"
        return HelloMetadata(handshake.encode_hello(self._hello))

    # Each step

    def obey(self, meta: StepMetadata) -> None:
        """Take this step's orders, before its forward where vLLM lets us; a second call with the same is harmless."""
        if meta is self._last_orders:
            return
        self._last_orders = meta
        for slot, serial in meta.revoked:
            self._fence.end(slot, serial)  # at once: this step's forward writes to the blocks
        self._is_idle = meta.is_idle
        self._mover.give(meta)

    def results(self) -> KVConnectorTransferResults:
        """What has ended since the last step."""
        moved = self._mover.take(IDLE_WAIT_S if self._is_idle else 0.0)
        self._is_idle = False
        self._stats = moved.stats
        self._news = DrainNews(moved.pinned, moved.drained) if moved.pinned or moved.drained else None
        out = KVConnectorTransferResults()
        # vLLM wants failed loads in both sets: the request leaves its wait, and its policy decides what follows.
        out.finished_recving |= moved.received
        out.failed_recving |= moved.failed
        out.finished_sending |= moved.given_back
        return out

    def take_news(self) -> DrainNews | None:
        """What the scheduler side has to pin or may let go, as of the last ``results``."""
        news, self._news = self._news, None
        return news

    def take_stats(self) -> RowConnectorStats | None:
        """Counts up to the last ``results``."""
        stats, self._stats = self._stats, None
        return stats

    def shutdown(self) -> None:
        self._mover.stop()


def _nothing() -> None:
    """Rows in host memory need no context."""

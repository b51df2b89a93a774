"""The vLLM KV connector: one class for both roles, each call passed to the side that lives in this process.

Loaded by vLLM through ``kv_connector="RowConnector"`` and ``kv_connector_module_path="kv_transfer.connector"``. The
scheduler role lives in the engine core, the worker role in each rank; vLLM calls each from one thread.
"""

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from kv_transfer.cache_row import REQUIRED_LAYOUT
from kv_transfer.connector_metrics import RowConnectorMetrics
from kv_transfer.connector_scheduler import SchedulerSide
from kv_transfer.connector_stats import RowConnectorStats
from kv_transfer.connector_worker import WorkerSide
from kv_transfer.step import StepMetadata

if TYPE_CHECKING:
    import torch
    from vllm.config import KVTransferConfig, VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import PromMetric, PromMetricT
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class RowConnector(KVConnectorBase_V1, SupportsHMA):
    """Decode pulls whole KV rows from prefill over NIXL."""

    # vLLM finds the third argument by its name.
    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._scheduler = self._worker = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(vllm_config, kv_cache_config)
        else:
            self._worker = WorkerSide(vllm_config, kv_cache_config)

    @property
    def scheduler(self) -> SchedulerSide:
        assert self._scheduler is not None, "scheduler role only"
        return self._scheduler

    @property
    def worker(self) -> WorkerSide:
        assert self._worker is not None, "worker role only"
        return self._worker

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: "VllmConfig") -> str:
        return REQUIRED_LAYOUT

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: "KVTransferConfig") -> bool:
        """No (asked from vLLM 0.33 on): waking up binds other memory than the one that is registered."""
        return False

    def get_kv_connector_stats(self) -> RowConnectorStats | None:
        return self._scheduler.take_stats() if self._scheduler is not None else self.worker.take_stats()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> RowConnectorStats:
        return RowConnectorStats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: "VllmConfig",
        metric_types: "dict[type[PromMetric], type[PromMetricT]]",
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> RowConnectorMetrics:
        return RowConnectorMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        side = self._scheduler if self._scheduler is not None else self.worker
        side.shutdown()

    # Scheduler role

    def on_new_request(self, request: "Request") -> None:
        self.scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        self.scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        return self.scheduler.build_meta(scheduler_output)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        self.scheduler.on_worker_output(connector_output)

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.scheduler.request_finished(request, list(block_ids[0]))

    def bind_gpu_block_pool(self, gpu_block_pool: "BlockPool") -> None:
        self.scheduler.bind_block_pool(gpu_block_pool)

    def has_pending_push_work(self) -> bool:
        """Steps go on while blocks are pinned, so that they are let go when their reads have ended."""
        return self._scheduler is not None and self._scheduler.has_pins()

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        self.scheduler.start_side_channel(metadata)

    # Worker role

    def register_kv_caches(self, kv_caches: "dict[str, torch.Tensor]") -> None:
        self.worker.register(kv_caches)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata:
        return self.worker.hello()

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """vLLM's first call of a step, before anything is computed or overwritten."""
        assert isinstance(kv_connector_metadata, StepMetadata)
        self.worker.obey(kv_connector_metadata)

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        meta = self._get_connector_metadata()
        assert isinstance(meta, StepMetadata)
        self.worker.obey(meta)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        return self.worker.results()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return self.worker.take_news()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: rows arrive between steps, never during one."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: "torch.Tensor", attn_metadata: "AttentionMetadata", **kwargs: Any
    ) -> None:
        """Nothing: decode reads finished blocks where they lie."""

    def wait_for_save(self) -> None:
        """Nothing: see save_kv_layer."""

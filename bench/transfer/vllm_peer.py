"""vLLM's own NixlConnector on the same bytes: its real worker class, without an engine around it.

What is vLLM's: ``NixlPullConnectorWorker`` with its agent's settings, ``register_kv_caches``, the metadata and the
handshake's ``add_remote_agent``, ``start_load_kv`` (block ids to descriptor ids, posting) and ``get_transfer_results``
(polling, telemetry, giving back). What is ours: the answers that its constructor asks of an engine, of a model and of
the TP group, as stand-ins below; and the bytes of its handshake go through our pipe in place of its ZMQ socket.

Layouts: LBNHC, its default, and BLHNC, block-outermost. It makes a descriptor for each layer and block in both.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import torch
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlAgentMetadata, NixlConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

from bench.transfer.case import Request
from bench.transfer.geometry import BLOCK_TOKENS, PAGE_BYTES, Layout
from bench.transfer.peer import Sample, wait_until
from bench.transfer.pool import Pool

ADDRESS = ("127.0.0.1", 0)  # of a handshake that never takes place
LAYOUTS: dict[str, Layout] = {"LBNHC": "layer_outer", "BLHNC": "block_outer"}


class _Backend:
    """Stands in for an attention backend: a name, and blocks of the size that the cache has."""

    @staticmethod
    def get_name() -> str:
        return "BENCH"

    @staticmethod
    def get_supported_kernel_block_sizes(_spec: object = None) -> list[int]:
        return [BLOCK_TOKENS]


def make_worker(engine_id: str, layout_name: str, pool: Pool) -> tuple[Any, bytes]:
    """A worker of vLLM's with the pool registered as 125 layers, and what its handshake tells a peer."""
    names = [f"model.layers.{number}.attn" for number in range(len(PAGE_BYTES))]
    specs = {
        # K and V of one head, a byte an element: the size of the page is what the connector looks at.
        name: FullAttentionSpec(
            block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=size // BLOCK_TOKENS // 2, dtype=torch.uint8
        )
        for name, size in zip(names, PAGE_BYTES, strict=True)
    }
    group = KVCacheGroupSpec(names, UniformTypeKVCacheSpecs(block_size=BLOCK_TOKENS, kv_cache_specs=specs))
    cache_config = KVCacheConfig(num_blocks=pool.num_blocks, kv_cache_tensors=[], kv_cache_groups=[group])
    with _stand_ins():
        worker = NixlPullConnectorWorker(_config(layout_name), engine_id, cache_config)
        worker.register_kv_caches(dict(zip(names, pool.pages(LAYOUTS[layout_name]), strict=True)))
    payload = worker.xfer_handshake_metadata
    assert payload is not None
    return worker, payload.agent_metadata_bytes


def _config(layout_name: str) -> Any:
    """The part of a VllmConfig that the worker reads: one rank, GQA with one head, no speculation."""
    model = SimpleNamespace(
        model="bench",
        dtype=torch.uint8,
        use_mla=False,
        enable_sleep_mode=False,
        get_total_num_kv_heads=lambda: 1,
        get_head_size=lambda: 128,
        get_total_num_hidden_layers=lambda: len(PAGE_BYTES),
    )
    cache = SimpleNamespace(
        block_size=BLOCK_TOKENS,
        cache_dtype="auto",
        enable_prefix_caching=True,
        get_resolved_kv_cache_layout=lambda: KVCacheLayout[layout_name],
    )
    parallel = SimpleNamespace(
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        prefill_context_parallel_size=1,
        decode_context_parallel_size=1,
    )
    return SimpleNamespace(
        kv_transfer_config=KVTransferConfig(kv_connector="NixlConnector", kv_role="kv_both"),
        model_config=model,
        cache_config=cache,
        parallel_config=parallel,
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=True),
        speculative_config=None,
        compilation_config=SimpleNamespace(static_forward_context={}),
    )


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """No TP group, no layers; and the core to which the worker pins a CPU process (findings 1) is given back."""
    cores = os.sched_getaffinity(0)
    try:
        with (
            patch.object(base_worker, "get_tensor_model_parallel_rank", lambda: 0),
            patch.object(base_worker, "get_tensor_model_parallel_world_size", lambda: 1),
            patch.object(base_worker, "get_current_attn_backends", lambda _config: [_Backend]),
        ):
            yield
    finally:
        os.sched_setaffinity(0, cores)


class VllmPeer:
    """All requests in one step: ``start_load_kv``, then ``get_transfer_results`` until they are all there."""

    def __init__(self, layout_name: str, pool: Pool, source: bytes) -> None:
        self.name = f"vllm_{layout_name}"
        self.layout: Layout = LAYOUTS[layout_name]
        self._worker, _ = make_worker(f"sink-{layout_name}", layout_name, pool)
        metadata = msgspec.msgpack.decode(source, type=NixlAgentMetadata)
        self._peer_id: str = metadata.engine_id
        self._worker._remote_agents[self._peer_id] = {(0, 0): self._worker.add_remote_agent(metadata)}
        self._worker._engine_by_address[ADDRESS] = self._peer_id  # else it takes the peer for a replaced one
        self._num_asked = 0

    def move(self, requests: Sequence[Request]) -> Sample:
        worker, meta, waiting = self._worker, NixlConnectorMetadata(), set()
        for request in requests:
            self._num_asked += 1
            request_id = f"{self.name}-{self._num_asked}"
            waiting.add(request_id)
            meta.add_new_req_to_recv(
                request_id,
                (request.mine.tolist(),),
                {
                    "remote_block_ids": (request.theirs.tolist(),),
                    "remote_engine_id": self._peer_id,
                    "remote_request_id": request_id,
                    "remote_host": ADDRESS[0],
                    "remote_port": ADDRESS[1],
                    "tp_size": 1,
                },
                awaiting_kvs=True,
            )
        worker.get_kv_connector_stats()  # empties the count of descriptors
        began = time.perf_counter()
        worker.start_load_kv(meta)
        posted = time.perf_counter()

        def is_done() -> bool:
            results = worker.get_transfer_results()
            if results.failed_recving:
                raise RuntimeError(f"{self.name}: {len(results.failed_recving)} requests failed")
            waiting.difference_update(results.finished_recving)
            return not waiting

        wait_until(is_done, self.name)
        ended = time.perf_counter()
        stats = worker.get_kv_connector_stats()
        num_descriptors = int(sum(stats.data["num_descriptors"])) if stats is not None else 0
        return Sample(ended - began, posted - began, num_descriptors)

    def close(self) -> None:
        self._worker.shutdown()

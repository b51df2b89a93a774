"""The scheduler side of engines as vLLM makes it, with stand-ins for vLLM's configuration."""

import socket
from types import SimpleNamespace
from typing import Any

from kv_transfer.connector_scheduler import SchedulerSide
from kv_transfer.step import HelloMetadata, StepMetadata
from tests.unit.kv_transfer.factories import BLOCK, FINGERPRINT, Clock

ROW_BYTES = 1440


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def vllm_config(
    engine_id: str, *, policy: str = "recompute", tp_size: int = 1, num_kv_heads: int = 4, **extra: Any
) -> Any:
    transfer = SimpleNamespace(
        kv_connector_extra_config={"host": "127.0.0.1", "port": 5600, "fingerprint": FINGERPRINT} | extra,
        engine_id=engine_id,
        kv_load_failure_policy=policy,
    )
    return SimpleNamespace(
        kv_transfer_config=transfer,
        parallel_config=SimpleNamespace(tensor_parallel_size=tp_size),
        model_config=SimpleNamespace(get_total_num_kv_heads=lambda: num_kv_heads),
    )


def cache_config() -> Any:
    group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=BLOCK), layer_names=["pool"])
    return SimpleNamespace(kv_cache_groups=[group], kv_cache_tensors=[SimpleNamespace(block_stride=ROW_BYTES)])


class Engine:
    """One engine's scheduler side, answering at a port of its own."""

    def __init__(self, engine_id: str, clock: Clock, **extra: Any) -> None:
        self.engine_id, self.port = engine_id, free_port()
        self.side = SchedulerSide(vllm_config(engine_id, port=self.port, **extra), cache_config(), clock=clock)
        self.side.start_side_channel({1: HelloMetadata(b"rank 1"), 0: HelloMetadata(b"rank 0")})

    def step(self, *preempted: str, num_tokens: int = 1) -> StepMetadata:
        scheduled: Any = SimpleNamespace(total_num_scheduled_tokens=num_tokens, preempted_req_ids=set(preempted))
        return self.side.build_meta(scheduled)

    def ranks_report(self, *, sent: str | None = None, received: str | None = None, failed: str | None = None) -> None:
        output: Any = SimpleNamespace(
            finished_sending={sent} - {None},
            finished_recving={received, failed} - {None},
            failed_recving={failed} - {None},
            kv_connector_worker_meta=None,
        )
        self.side.on_worker_output(output)

    def stats(self) -> dict[str, Any]:
        taken = self.side.take_stats()
        return taken.data if taken is not None else {}

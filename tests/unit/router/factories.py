"""Named values that the router's unit tests share."""

from collections.abc import Mapping
from types import MappingProxyType

from router.workers import Worker
from wire.versions import WIRE_VERSION
from wire.worker import WorkerHeartbeat, WorkerRegistration, WorkerRole, WorkerState, WorkerStatus

FINGERPRINT = MappingProxyType({"kv_dtype": "nvfp4", "max_model_len": "8192"})


class ManualClock:
    """A clock that moves only when told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def make_heartbeat(
    worker_id: str = "prefill-0",
    *,
    role: WorkerRole = WorkerRole.PREFILL,
    generation: str = "g1",
    url: str = "http://127.0.0.1:8100",
    model: str = "nano",
    state: WorkerState = WorkerState.READY,
    wire_version: int = WIRE_VERSION,
    fingerprint: Mapping[str, str] = FINGERPRINT,
) -> WorkerHeartbeat:
    """Of an engine that is named by worker and generation, with a side channel at an address of the worker's own."""
    registration = WorkerRegistration(
        worker_id=worker_id,
        generation=generation,
        role=role,
        url=url,
        model=model,
        max_model_len=8192,
        block_size=128,
        row_bytes=1000,
        wire_version=wire_version,
        engine_id=f"{worker_id}-{generation}",
        kv_host=f"{worker_id}.kv",
        kv_port=5600,
        fingerprint=dict(fingerprint),
    )
    return WorkerHeartbeat(registration=registration, status=WorkerStatus(state=state))


def make_worker(worker_id: str, role: WorkerRole = WorkerRole.PREFILL) -> Worker:
    return Worker(worker_id, "g1", role, f"http://{worker_id}", "nano", WorkerStatus(state=WorkerState.READY))

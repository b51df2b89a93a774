"""What a worker tells the router: who it is (registration) and how it is (status), together one heartbeat."""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from wire.handoff import MAX_HANDOFF_KEYS, KeyId, Port
from wire.parallelism import Parallelism
from wire.versions import WIRE_VERSION


class WorkerRole(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class WorkerState(StrEnum):
    """STARTING: no request can be served yet. READY: can serve. DRAINING: finishes what it has, takes nothing new."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


Fingerprint = Annotated[dict[str, str], Field(max_length=64)]
# By ids (wire.handoff.HandoffKeys). Unknown on workers older than these fields: they pair as if the keys were right.
SigningKey = Annotated[KeyId | None, Field(description="id of the key that this worker signs handoffs with")]
AcceptedKeys = Annotated[
    tuple[KeyId, ...], Field(max_length=MAX_HANDOFF_KEYS, description="ids of the keys whose handoffs it reads")
]


class WorkerCheck(BaseModel):
    """Asked before a worker loads its model: is there a peer that it can never pair with?"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    worker_id: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._-]+$")
    role: WorkerRole
    model: str = Field(min_length=1)
    wire_version: int = WIRE_VERSION
    fingerprint: Fingerprint
    handoff_key: SigningKey = None
    handoff_keys: AcceptedKeys = ()


class WorkerRegistration(BaseModel):
    """Identity and fixed abilities of one worker process."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    worker_id: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._-]+$")
    generation: str = Field(min_length=1, max_length=64, description="new at each process start")
    role: WorkerRole
    url: str = Field(pattern=r"^https?://", description="base URL that the router dials, no trailing slash")
    model: str = Field(min_length=1, description="served model name")
    max_model_len: int = Field(ge=1, description="tokens, prompt and output together")
    block_size: int = Field(ge=1, description="tokens a block")
    row_bytes: int = Field(ge=1, description="bytes of one KV row on one rank")
    parallelism: Parallelism = Parallelism()
    wire_version: int = WIRE_VERSION
    engine_id: str = Field(min_length=1, max_length=256, description="names this life of the engine in handoffs")
    kv_host: str = Field(min_length=1, max_length=253, description="address of the KV side channel")
    kv_port: Port
    fingerprint: Fingerprint = Field(description="what must be equal on prefill and decode, by name")
    handoff_key: SigningKey = None
    handoff_keys: AcceptedKeys = ()


class WorkerStatus(BaseModel):
    """A snapshot of one worker; counters are totals since the process started."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: WorkerState
    num_requests_running: int = Field(default=0, ge=0)
    num_requests_waiting: int = Field(default=0, ge=0)
    kv_cache_usage: float = Field(default=0.0, ge=0, le=1)
    num_leases: int = Field(default=0, ge=0, description="handoffs whose blocks this worker still holds")
    kv_handoffs_total: int = Field(default=0, ge=0, description="handoffs this worker has read")
    kv_blocks_total: int = Field(default=0, ge=0)
    kv_descriptors_total: int = Field(default=0, ge=0, description="NIXL descriptors after merging")
    kv_bytes_total: int = Field(default=0, ge=0)
    kv_failures_total: int = Field(default=0, ge=0)


class WorkerHeartbeat(BaseModel):
    """Sent to the router every few seconds; the first one registers the worker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    registration: WorkerRegistration
    status: WorkerStatus


class KVPeer(BaseModel):
    """Where a registered worker's side channel listens. A decode worker dials these addresses and no other."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine_id: str = Field(min_length=1, max_length=256)
    host: str = Field(min_length=1, max_length=253)
    port: Port


class HeartbeatReply(BaseModel):
    """How long the router believes a worker without a further heartbeat, and whom the worker may read from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ttl_s: float = Field(gt=0)
    peers: tuple[KVPeer, ...] = Field(default=(), description="to decode workers: the prefill workers they pair with")

"""The one typed configuration of a worker process: the launcher writes it, the worker reads it.

``python -m prefill_worker --config FILE`` takes it as JSON. An unknown or wrong key stops the start with its name.
Secrets are not in it: the cluster token comes from the environment (``TANDEM_CLUSTER_TOKEN``).
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from wire.parallelism import Parallelism
from wire.worker import WorkerRole

CLUSTER_TOKEN_ENV = "TANDEM_CLUSTER_TOKEN"
UNUSABLE_ADVERTISED_HOSTS = frozenset({"0.0.0.0", "::", "[::]", "*", ""})


def check_advertised_host(host: str) -> str:
    """Refuse a wildcard address where peers must be able to dial: each would reach itself."""
    if host in UNUSABLE_ADVERTISED_HOSTS:
        raise ValueError(f"{host!r} can't be advertised to peers; give the address at which others reach this worker")
    return host


class KVTransferConfig(BaseModel):
    """How KV rows leave or reach this worker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(default="127.0.0.1", description="address of the handshake side channel, dialled by peers")
    port: int = Field(ge=1, le=65535, description="port of the handshake side channel")
    lease_s: float = Field(default=30.0, gt=0, le=3600, description="seconds prefill keeps blocks for a reader")
    handshake_timeout_s: float = Field(default=5.0, gt=0, le=60)
    load_failure_policy: Literal["recompute", "fail"] = "recompute"
    nixl_backends: tuple[str, ...] = Field(default=("UCX",), min_length=1)
    enable_progress_thread: bool | None = Field(
        default=None, description="NIXL's spinning thread drives transfers; none: on GPU only, as it takes a CPU core"
    )

    _host = field_validator("host")(check_advertised_host)


class WorkerConfig(BaseModel):
    """Everything that one prefill or decode worker needs to start."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    worker_id: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._-]+$")
    role: WorkerRole
    model: str = Field(min_length=1, description="checkpoint directory")
    served_model_name: str = Field(min_length=1)
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(ge=1, le=65535)
    advertise_url: str | None = Field(default=None, pattern=r"^https?://", description="default: http://host:port")
    router_url: str | None = Field(default=None, pattern=r"^https?://", description="where to register; none: alone")
    heartbeat_s: float = Field(default=1.0, gt=0, le=60)
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    block_size: Literal[128] = 128
    max_model_len: int = Field(default=8192, ge=128)
    max_num_seqs: int = Field(default=16, ge=1)
    max_num_batched_tokens: int = Field(default=2048, ge=128)
    kv_cache_bytes: int | None = Field(default=None, ge=1 << 20, description="KV space; none: vLLM's own profiling")
    parallelism: Parallelism = Parallelism()
    num_threads: int = Field(default=1, ge=1, le=1024, description="OpenMP threads of each CPU rank")
    enforce_eager: bool = False
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    drain_timeout_s: float = Field(default=30.0, ge=0, le=3600, description="SIGTERM: seconds to finish what runs")
    extra_vllm_args: tuple[str, ...] = Field(default=(), description="appended to vLLM's command line as they are")
    kv_transfer: KVTransferConfig

    @property
    def url(self) -> str:
        """Base URL at which the router reaches this worker."""
        if self.advertise_url is not None:
            return self.advertise_url.rstrip("/")
        return f"http://{check_advertised_host(self.host)}:{self.port}"

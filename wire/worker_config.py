"""The one typed configuration of a worker process: the launcher writes it, the worker reads it.

``python -m prefill_worker --config FILE`` takes it as JSON. An unknown or wrong key stops the start with its name.
Secrets are not in it: the cluster token and the handoff key come from the environment (``TANDEM_CLUSTER_TOKEN``,
``TANDEM_HANDOFF_KEY``).

A worker that can't serve as it is configured and must not be started again (its peers differ, a transport is missing)
writes one line of ``EXIT_REASON_PREFIX`` and the reason to standard error and ends with ``EXIT_CONFIG``; the launcher
then shows that line and stops the deployment.
"""

from ipaddress import ip_address
from socket import inet_aton
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from wire.parallelism import Parallelism
from wire.prefill_queue import PrefillQueue
from wire.token_split import TokenSplit
from wire.worker import WorkerRole

CLUSTER_TOKEN_ENV = "TANDEM_CLUSTER_TOKEN"
EXIT_CONFIG = 78  # EX_CONFIG of sysexits.h
EXIT_REASON_PREFIX = "can't serve: "


def is_wildcard(host: str) -> bool:
    """Whether it means every address of this machine, however it is spelled (``0``, ``::``, ``0x0.0``, ``*``)."""
    bare = host.strip().strip("[]")
    if bare in ("", "*"):
        return True
    try:
        address = ip_address(bare)
    except ValueError:
        try:
            # What the C library takes for an address beside the usual spelling.
            return inet_aton(bare) == bytes(4)
        except OSError:
            return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_unspecified or (mapped is not None and mapped.is_unspecified)


def check_advertised_host(host: str) -> str:
    """Refuse a wildcard address where peers must be able to dial: each would reach itself."""
    if is_wildcard(host):
        raise ValueError(f"{host!r} can't be advertised to peers; give the address at which others reach this worker")
    return host


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone. Names other than localhost don't count."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class KVTransferPolicy(BaseModel):
    """How KV rows cross from prefill to decode: what a deployment may choose for its workers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lease_s: float = Field(default=30.0, gt=0, le=3600, description="seconds prefill keeps blocks for a reader")
    handshake_timeout_s: float = Field(default=5.0, gt=0, le=60)
    load_failure_policy: Literal["recompute", "fail"] = Field(
        default="recompute", description="KV that did not cross: compute the prompt on decode, or fail the request"
    )
    read_timeout_s: float = Field(default=30.0, gt=0, le=3600, description="a read that takes longer is given up")
    extra_peers: tuple[str, ...] = Field(
        default=(), description="host:port of side channels that may be read from beside those that the router names"
    )
    required_transports: tuple[Literal["rdma", "nvlink", "shm", "tcp"], ...] = Field(
        default=(), description="KV must cross by one of these; none: by whatever UCX chooses"
    )
    on_wrong_transport: Literal["refuse", "warn"] = "refuse"
    nixl_backends: tuple[str, ...] = Field(default=("UCX",), min_length=1)
    enable_progress_thread: bool = Field(
        default=False,
        description="NIXL's own thread drives transfers: spins on a core, and halves the rate between two H200s",
    )

    @field_validator("extra_peers")
    @classmethod
    def _addresses(cls, peers: tuple[str, ...]) -> tuple[str, ...]:
        for peer in peers:
            host, _, port = peer.rpartition(":")
            if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
                raise ValueError(f"{peer!r} is not host:port")
        return peers


class KVTransferConfig(KVTransferPolicy):
    """How KV rows leave or reach this worker."""

    host: str = Field(default="127.0.0.1", description="address of the handshake side channel, dialled by peers")
    port: int = Field(ge=1, le=65535, description="port of the handshake side channel")

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
    advertise_url: str | None = Field(
        default=None,
        pattern=r"^https?://",
        validate_default=True,
        description="default: http://host:port; needed where host means every address",
    )
    router_url: str | None = Field(
        default=None, pattern=r"^https?://", description="where to register: its metrics port; none: alone"
    )
    heartbeat_s: float = Field(default=1.0, gt=0, le=60)
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    block_size: Literal[128] = 128
    max_model_len: int = Field(default=8192, ge=128)
    max_num_seqs: int = Field(default=16, ge=1)
    max_num_batched_tokens: int = Field(default=2048, ge=128)
    kv_cache_bytes: int | None = Field(default=None, ge=1 << 20, description="KV space; none: vLLM's own profiling")
    parallelism: Parallelism = Parallelism()
    token_split: TokenSplit = TokenSplit()
    prefill_queue: PrefillQueue = PrefillQueue()
    num_threads: int = Field(default=1, ge=1, le=1024, description="OpenMP threads of each CPU rank")
    enforce_eager: bool = False
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    drain_timeout_s: float = Field(default=30.0, ge=0, le=3600, description="SIGTERM: seconds to finish what runs")
    extra_vllm_args: tuple[str, ...] = Field(default=(), description="appended to vLLM's command line as they are")
    kv_transfer: KVTransferConfig

    @field_validator("advertise_url")
    @classmethod
    def _can_be_dialled(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is not None:
            check_advertised_host(urlsplit(url).hostname or "")
        elif "host" in info.data:  # absent where it is wrong itself
            check_advertised_host(info.data["host"])
        return url

    @field_validator("parallelism")
    @classmethod
    def _built(cls, parallelism: Parallelism) -> Parallelism:
        if parallelism.dp_size != 1:
            raise ValueError("dp_size must be 1: a worker has one side channel, replicas would need one each")
        if parallelism.dcp_size != 1:
            raise ValueError("dcp_size has no effect yet; tp_size and enable_ep can be chosen")
        return parallelism

    @model_validator(mode="after")
    def _split_where_it_works(self) -> Self:
        if self.token_split.is_on and self.role is not WorkerRole.PREFILL:
            raise ValueError("token_split is for prefill workers: decode runs in CUDA graphs, which hold no split step")
        self.token_split.check_ranks(self.parallelism.tp_size, self.parallelism.dp_size)
        return self

    @model_validator(mode="after")
    def _queue_where_it_is_used(self) -> Self:
        if self.role is not WorkerRole.PREFILL and self.prefill_queue != PrefillQueue():
            raise ValueError("prefill_queue is for prefill workers")
        return self

    @model_validator(mode="after")
    def _nothing_is_replaced(self) -> Self:
        is_set = self.role is WorkerRole.PREFILL and (self.token_split.is_on or self.prefill_queue.policy == "ttft")
        if is_set and any(arg.startswith("--additional") for arg in self.extra_vllm_args):
            raise ValueError(
                "extra_vllm_args: --additional-config would replace what token_split and prefill_queue say"
            )
        return self

    @property
    def url(self) -> str:
        """Base URL at which the router reaches this worker."""
        if self.advertise_url is not None:
            return self.advertise_url.rstrip("/")
        return f"http://{self.host}:{self.port}"

"""The one typed description of a deployment: which processes run, where, and with what settings.

Owns defaults and every check that needs no machine (free ports and files are looked at later, in ``expand`` and
``local``). It is written as YAML; ``spec_file`` reads it. An unknown key is an error, never ignored.
"""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ByteSize, ConfigDict, Field, StrictInt, field_validator, model_validator

from wire.parallelism import Parallelism
from wire.prefill_queue import PrefillQueue
from wire.token_split import TokenSplit
from wire.worker_config import KVTransferPolicy, check_advertised_host, is_wildcard

NANO_MODEL = "nano"
MAX_PORT = 65_535
# Set for each group and router by their own sections of the spec, or generated: not free to pass through.
ROUTER_KEYS_FROM_SPEC = frozenset({"host", "port", "metrics_port"})

PortChoice = Literal["auto"] | StrictInt


def check_port_choice(port: PortChoice | None) -> PortChoice | None:
    """Refuse a number that is no TCP port; ``auto`` means any free one."""
    if isinstance(port, int) and not 1 <= port <= MAX_PORT:
        raise ValueError(f"{port} is not a port; give 1 to {MAX_PORT}, or auto")
    return port


def _numbers(port: PortChoice | None, count: int = 1) -> list[int]:
    """``count`` ports from ``port`` on; none where no number is given."""
    return list(range(port, port + count)) if isinstance(port, int) else []


class SpecModel(BaseModel):
    """Base of every section: unknown keys are refused, values don't change after the checks."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OverridableSpec(SpecModel):
    """Base of sections that a group may have too: there, only the keys that it writes override."""

    def overridden_by(self, other: Self) -> Self:
        """This section with each key that ``other`` sets itself, null included."""
        return self.model_copy(update={key: getattr(other, key) for key in other.model_fields_set})


class EngineSpec(OverridableSpec):
    """Settings of a vLLM engine."""

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_model_len: int = Field(default=8192, ge=128, description="tokens, prompt and output together")
    max_num_seqs: int = Field(default=16, ge=1)
    max_num_batched_tokens: int = Field(default=2048, ge=128)
    kv_cache_bytes: ByteSize | None = Field(default=None, ge=1 << 20, description="number or '128MiB'; none: profiled")
    num_threads: int = Field(default=1, ge=1, le=1024, description="OpenMP threads of each CPU rank")
    enforce_eager: bool = False
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    extra_vllm_args: tuple[str, ...] = ()


class KVTransferSpec(KVTransferPolicy, OverridableSpec):
    """How KV rows cross from prefill to decode; the keys are those of the workers' own configuration."""


class GroupSpec(SpecModel):
    """The workers of one role. Worker ``i`` listens on ``port + i`` and ``kv_port + i`` unless they are ``auto``."""

    replicas: int = Field(default=1, ge=1, le=256)
    parallelism: Parallelism = Parallelism()
    token_split: TokenSplit = TokenSplit()
    prefill_queue: PrefillQueue = PrefillQueue()
    host: str = Field(default="127.0.0.1", description="address to listen on, dialled by the router and by peers")
    port: PortChoice = "auto"
    kv_port: PortChoice = Field(default="auto", description="handshake side channel of the KV transfer")
    engine: EngineSpec = EngineSpec()
    kv_transfer: KVTransferSpec = KVTransferSpec()
    env: dict[str, str] = Field(default_factory=dict, description="added to each worker's environment")

    _host = field_validator("host")(check_advertised_host)
    _ports = field_validator("port", "kv_port")(check_port_choice)

    @model_validator(mode="after")
    def _has_ranks_to_split_over(self) -> Self:
        self.token_split.check_ranks(self.parallelism.tp_size, self.parallelism.dp_size)
        return self

    def fixed_ports(self, port: PortChoice) -> list[int]:
        """The ports that ``port`` as a base gives to the replicas; none for ``auto``."""
        return _numbers(port, self.replicas)


class RouterSpec(SpecModel):
    """The front door. ``settings`` goes into its own config file as it is; the router checks it at start."""

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0 is allowed here")
    port: PortChoice = 8000
    metrics_port: PortChoice | None = Field(
        default="auto", description="of /metrics and of the routes that workers call; null: they are on port too"
    )
    settings: dict[str, Any] = Field(default_factory=dict)

    _port = field_validator("port", "metrics_port")(check_port_choice)

    @field_validator("settings")
    @classmethod
    def _no_key_twice(cls, settings: dict[str, Any]) -> dict[str, Any]:
        for key in sorted(ROUTER_KEYS_FROM_SPEC & settings.keys()):
            raise ValueError(f"{key} belongs to router.{key}")
        return settings

    @property
    def dial_host(self) -> str:
        """The address at which this machine reaches the router: loopback where it listens on every address."""
        return "127.0.0.1" if is_wildcard(self.host) else self.host


class TimeoutsSpec(SpecModel):
    """How long each phase of the deployment's life may take."""

    start_s: float = Field(default=600.0, gt=0, description="until the router says ready")
    drain_s: float = Field(default=30.0, ge=0, le=3600, description="for requests in flight when asked to stop")
    kill_s: float = Field(default=10.0, gt=0, le=600, description="after drain_s, before the process tree is killed")
    heartbeat_s: float = Field(default=1.0, gt=0, le=60, description="between two reports of a worker to the router")


class RestartSpec(SpecModel):
    """When a process that ended is started again, and when the launcher gives up."""

    initial_backoff_s: float = Field(default=1.0, gt=0)
    max_backoff_s: float = Field(default=30.0, gt=0)
    max_crashes: int = Field(default=5, ge=0, description="more ends than this of one process within window_s: give up")
    window_s: float = Field(default=300.0, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_backoff_s < self.initial_backoff_s:
            raise ValueError("max_backoff_s is shorter than initial_backoff_s")
        return self


class DeploymentSpec(SpecModel):
    """One deployment: a router, a group of prefill workers and a group of decode workers serving one model."""

    name: str = Field(min_length=1, max_length=40, pattern=r"^[a-z0-9][a-z0-9-]*$")
    model: str = Field(min_length=1, description="checkpoint directory, or 'nano' for the generated small one")
    served_model_name: str = Field(min_length=1)
    state_dir: Path = Field(default=Path("build"), description="holds the nano checkpoint, run files and logs")
    engine: EngineSpec = EngineSpec()
    prefill: GroupSpec = GroupSpec()
    decode: GroupSpec = GroupSpec()
    router: RouterSpec = RouterSpec()
    kv_transfer: KVTransferSpec = KVTransferSpec()
    timeouts: TimeoutsSpec = TimeoutsSpec()
    restart: RestartSpec = RestartSpec()

    @model_validator(mode="after")
    def _what_is_for_prefill_alone(self) -> Self:
        if self.decode.token_split.is_on:
            raise ValueError("decode.token_split: only prefill workers split their tokens")
        if self.decode.prefill_queue != PrefillQueue():
            raise ValueError("decode.prefill_queue: only prefill workers have one")
        return self

    @model_validator(mode="after")
    def _ports_do_not_clash(self) -> Self:
        owners: dict[int, str] = {}
        for key, ports in self._fixed_ports():
            for port in ports:
                if port > MAX_PORT:
                    raise ValueError(f"{key}: replica ports run past {MAX_PORT}")
                if port in owners:
                    raise ValueError(f"{key}: port {port} is taken by {owners[port]}")
                owners[port] = key
        return self

    def _fixed_ports(self) -> list[tuple[str, list[int]]]:
        listed = [
            ("router.port", _numbers(self.router.port)),
            ("router.metrics_port", _numbers(self.router.metrics_port)),
        ]
        for name, group in (("prefill", self.prefill), ("decode", self.decode)):
            listed.append((f"{name}.port", group.fixed_ports(group.port)))
            listed.append((f"{name}.kv_port", group.fixed_ports(group.kv_port)))
        return listed

    def fixed_ports(self) -> set[int]:
        """Every port that the spec names; the others are chosen when it is expanded."""
        return {port for _, ports in self._fixed_ports() for port in ports}

    @property
    def checkpoint_dir(self) -> Path:
        """Where the model lies; the nano checkpoint is generated below ``state_dir``."""
        path = self.state_dir / NANO_MODEL if self.model == NANO_MODEL else Path(self.model).expanduser()
        return path.absolute()

    @property
    def run_dir(self) -> Path:
        """Private folder of this deployment's config files, lock and logs."""
        return (self.state_dir / "run" / self.name).absolute()

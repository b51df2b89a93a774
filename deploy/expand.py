"""Turns a deployment spec into the processes to run: command, environment, configuration and addresses of each."""

import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from types import MappingProxyType
from typing import Any

from deploy.ports import pick_free_port
from deploy.spec import NANO_MODEL, DeploymentSpec, GroupSpec, PortChoice
from deploy.spec_file import SpecError
from vllm_engine.args import vllm_env
from wire.worker import WorkerRole
from wire.worker_config import KVTransferConfig, WorkerConfig

# -P keeps the working directory off the import path: a folder there named like a package would shadow it.
PYTHON = (sys.executable, "-P", "-m")
ROUTER_ROLE = "router"
COMMANDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        ROUTER_ROLE: (*PYTHON, "router"),
        WorkerRole.PREFILL: (*PYTHON, "prefill_worker"),
        WorkerRole.DECODE: (*PYTHON, "decode_worker"),
    }
)
COMMON_ENV = {"PYTHONUNBUFFERED": "1"}
GPU_ENV = "CUDA_VISIBLE_DEVICES"
# Either of them makes the router speak TLS, on both ports.
TLS_SETTING, TLS_ENV = "tls_cert_file", "TANDEM_ROUTER_TLS_CERT_FILE"


@dataclass(frozen=True, kw_only=True)
class ProcessPlan:
    """One process to run. ``command`` lacks ``--config FILE``; ``env`` is added to the launcher's own environment."""

    name: str
    role: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    config: Mapping[str, Any]
    url: str
    listens: tuple[tuple[str, int], ...]

    @property
    def health_url(self) -> str:
        """Answers 200 when the process can serve."""
        return f"{self.url}/health"


@dataclass(frozen=True, kw_only=True)
class DeploymentPlan:
    """Everything to run for one spec; the router is the first process."""

    spec: DeploymentSpec
    router_url: str
    """The API."""
    control_url: str
    """Where the router has metrics and the routes that workers and the launcher call."""
    processes: tuple[ProcessPlan, ...]


def expand(
    spec: DeploymentSpec,
    environ: Mapping[str, str],
    rng: random.Random,
    commands: Mapping[str, tuple[str, ...]] = COMMANDS,
) -> DeploymentPlan:
    """Plan the processes of ``spec``, choosing a free port for each ``auto``.

    ``environ`` is read for the GPUs that may be used, and for whether the router speaks TLS. Raises SpecError when the
    workers need more GPUs than it lists, PortTaken when no free port is left.
    """
    ports = _PortBook(spec, rng)
    router, control_url = _plan_router(spec, environ, ports, commands)
    gpus = _gpu_ids(environ)
    workers = [
        _plan_worker(spec, role, group, index, control_url, ports, gpus, commands)
        for role, group in ((WorkerRole.PREFILL, spec.prefill), (WorkerRole.DECODE, spec.decode))
        for index in range(group.replicas)
    ]
    return DeploymentPlan(spec=spec, router_url=router.url, control_url=control_url, processes=(router, *workers))


class _PortBook:
    """Gives out ports, each once; those fixed in the spec are never given out for ``auto``."""

    def __init__(self, spec: DeploymentSpec, rng: random.Random) -> None:
        self._taken = spec.fixed_ports()
        self._rng = rng

    def take(self, host: str, choice: PortChoice, index: int = 0) -> int:
        if choice != "auto":
            return choice + index
        port = pick_free_port(host, self._taken, self._rng)
        self._taken.add(port)
        return port


def check_checkpoint(spec: DeploymentSpec) -> None:
    """Raises SpecError when the model is neither ``nano`` nor a folder with a checkpoint in it."""
    if spec.model != NANO_MODEL and not (spec.checkpoint_dir / "config.json").is_file():
        raise SpecError(f"model: {spec.checkpoint_dir} is no checkpoint folder (it has no config.json)")


def _plan_router(
    spec: DeploymentSpec, environ: Mapping[str, str], ports: _PortBook, commands: Mapping[str, tuple[str, ...]]
) -> tuple[ProcessPlan, str]:
    """The router, and the URL of its control routes."""
    host = spec.router.host
    address: dict[str, str | int] = {"host": host, "port": ports.take(host, spec.router.port)}
    if spec.router.metrics_port is not None:
        address["metrics_port"] = ports.take(host, spec.router.metrics_port)
    # Address as flags, since the router's environment variables go before its file.
    flags = [word for key, value in address.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    listens = tuple((host, int(port)) for key, port in address.items() if key != "host")
    is_tls = bool(spec.router.settings.get(TLS_SETTING) or environ.get(TLS_ENV))
    urls = [f"{'https' if is_tls else 'http'}://{_bracketed(spec.router.dial_host)}:{port}" for _, port in listens]
    # One policy for a prompt that prefill can't deliver, whether its rows don't cross or nobody is there to compute it.
    decode_policy = spec.kv_transfer.overridden_by(spec.decode.kv_transfer).load_failure_policy
    defaults = {
        "shutdown_timeout_s": spec.timeouts.drain_s,
        "no_prefill": "decode_only" if decode_policy == "recompute" else "strict",
    }
    plan = ProcessPlan(
        name="router",
        role=ROUTER_ROLE,
        command=(*commands[ROUTER_ROLE], "--key-prefix", "router.settings.", *flags),
        env=COMMON_ENV,
        config={**defaults, **spec.router.settings, **address},
        url=urls[0],
        listens=listens,
    )
    return plan, urls[-1]


def _plan_worker(
    spec: DeploymentSpec,
    role: WorkerRole,
    group: GroupSpec,
    index: int,
    control_url: str,
    ports: _PortBook,
    gpus: Iterator[str],
    commands: Mapping[str, tuple[str, ...]],
) -> ProcessPlan:
    engine = spec.engine.overridden_by(group.engine)
    transfer = spec.kv_transfer.overridden_by(group.kv_transfer)
    config = WorkerConfig(
        worker_id=f"{role}-{index}",
        role=role,
        model=str(spec.checkpoint_dir),
        served_model_name=spec.served_model_name,
        host=group.host,
        port=ports.take(group.host, group.port, index),
        router_url=control_url,
        heartbeat_s=spec.timeouts.heartbeat_s,
        parallelism=group.parallelism,
        token_split=group.token_split,
        prefill_queue=group.prefill_queue,
        drain_timeout_s=spec.timeouts.drain_s,
        kv_transfer=KVTransferConfig(
            host=group.host, port=ports.take(group.host, group.kv_port, index), **transfer.model_dump()
        ),
        **engine.model_dump(),
    )
    return ProcessPlan(
        name=config.worker_id,
        role=role,
        command=commands[role],
        # The worker would set vLLM's variables itself, but yield to what the launcher inherited: the spec rules here.
        env={**COMMON_ENV, **vllm_env(config), **_gpu_env(config, gpus), **group.env},
        config=config.model_dump(mode="json"),
        url=f"http://{_bracketed(group.host)}:{config.port}",
        listens=((group.host, config.port), (group.host, config.kv_transfer.port)),
    )


def _gpu_env(config: WorkerConfig, gpus: Iterator[str]) -> dict[str, str]:
    if config.device != "cuda":
        return {}
    num_gpus = config.parallelism.world_size
    ids = list(islice(gpus, num_gpus))
    if len(ids) < num_gpus:
        raise SpecError(f"the workers need more GPUs than {GPU_ENV} lists")
    return {GPU_ENV: ",".join(ids)}


def _gpu_ids(environ: Mapping[str, str]) -> Iterator[str]:
    """The GPUs to give out, in order: those that ``environ`` allows, or 0, 1, 2, ..."""
    listed = environ.get(GPU_ENV)
    if listed is not None:
        return iter([gpu.strip() for gpu in listed.split(",") if gpu.strip()])
    return map(str, count())


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host

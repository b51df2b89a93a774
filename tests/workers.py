"""Single workers beside a running stack: standalone processes with a configuration of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.conftest import MAX_MODEL_LEN
from tests.stack import HANDOFF_KEY, MODEL, REPOSITORY, TOKEN, free_port, stop, wait_until_ok


@dataclass(frozen=True)
class Worker:
    """A worker process and where it listens."""

    url: str
    kv_address: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def engine_processes(self) -> list[psutil.Process]:
        """Engine core and ranks; the API process stays out."""
        return psutil.Process(self.process.pid).children(recursive=True)


def worker_config(role: str, checkpoint: Path, **overrides: Any) -> dict[str, Any]:
    """A configuration like the stack's workers'; ``overrides`` replace whole keys."""
    config: dict[str, Any] = {
        "worker_id": f"{role}-alone",
        "role": role,
        "model": str(checkpoint),
        "served_model_name": MODEL,
        "port": free_port(),
        "dtype": "float32",
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 1024,
        "kv_cache_bytes": 128 << 20,
        "enforce_eager": True,
        "kv_transfer": {"port": free_port()},
    }
    return config | overrides


def start_worker(config: dict[str, Any], folder: Path, **env: str) -> Worker:
    """Start it, without waiting for anything."""
    name = config["worker_id"]
    path, log = folder / f"{name}.json", folder / f"{name}.log"
    path.write_text(json.dumps(config))
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{config['role']}_worker", "--config", str(path)],
            cwd=REPOSITORY,
            env=os.environ | {"TANDEM_CLUSTER_TOKEN": TOKEN, "TANDEM_HANDOFF_KEY": HANDOFF_KEY} | env,
            stdout=out,
            stderr=out,
        )
    kv = config["kv_transfer"]
    return Worker(f"http://127.0.0.1:{config['port']}", f"{kv.get('host', '127.0.0.1')}:{kv['port']}", process, log)


@contextmanager
def running_workers(folder: Path, *configs: tuple[dict[str, Any], dict[str, str]]) -> Iterator[list[Worker]]:
    """Workers of ``(configuration, environment)``, loaded side by side and ready."""
    workers = [start_worker(config, folder, **env) for config, env in configs]
    try:
        for worker in workers:
            wait_until_ok(f"{worker.url}/health", worker.process, worker.log)
        yield workers
    finally:
        for worker in workers:
            stop(worker.process)


@contextmanager
def static_router(
    folder: Path, prefill_urls: Sequence[str], decode_urls: Sequence[str], path: str = "/ready"
) -> Iterator[str]:
    """A router with static workers and no deployment, once ``path`` is good."""
    port, log = free_port(), folder / "router.log"
    command = [sys.executable, "-m", "router", "--port", str(port), "--health-interval-s", "0.2"]
    command += ["--prefill", ",".join(prefill_urls), "--decode", ",".join(decode_urls)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=REPOSITORY, env={"TANDEM_CLUSTER_TOKEN": TOKEN}, stdout=out, stderr=out)
    try:
        wait_until_ok(f"http://127.0.0.1:{port}{path}", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(process)

"""Real deployments for tests: prefill + decode + router as `make serve` starts them, and one plain engine.

The plain engine is stock vLLM with our model plugin and no KV connector: what the pair must equal.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import OpenAI

REPOSITORY = Path(__file__).resolve().parents[1]
MODEL = "tandem-nano"
TOKEN = "test-cluster-token"
HANDOFF_KEY = "test-handoff-key"
START_LIMIT_S = 300.0
STOP_LIMIT_S = 60.0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def wait_until_ok(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Until ``url`` answers 200; fails with the log's end when the process ends or the time is up."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(url, timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    pytest.fail(f"{url} is not there ({process.poll()}):\n{log.read_text(errors='replace')[-4000:]}", pytrace=False)


@dataclass
class Stack:
    """What a test may know of the running deployment."""

    url: str
    control_url: str
    """Of the router: metrics, and the routes that workers call."""
    launcher: "subprocess.Popen[bytes]"
    checkpoint: Path
    start_s: float = 0.0
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=120))

    def __post_init__(self) -> None:
        self.client = openai_client(self.url)

    @property
    def end_token(self) -> int:
        """The model's end-of-sequence token."""
        return int(json.loads((self.checkpoint / "config.json").read_text())["eos_token_id"])

    def registrations(self) -> list[dict[str, Any]]:
        reply = self.http.get(f"{self.control_url}/internal/workers", headers={"authorization": f"Bearer {TOKEN}"})
        reply.raise_for_status()
        return [worker["registration"] for worker in reply.json()["workers"]]

    def generations(self) -> dict[str, str]:
        """Worker id -> generation; a restart changes it."""
        return {r["worker_id"]: r["generation"] for r in self.registrations()}

    def worker(self, role: str) -> str:
        """Base URL of the one worker of ``role``."""
        [url] = [r["url"] for r in self.registrations() if r["role"] == role]
        return str(url)

    def ask(self, role: str, path: str) -> httpx.Response:
        """GET from a worker, as the cluster."""
        return self.http.get(self.worker(role) + path, headers={"authorization": f"Bearer {TOKEN}"})

    def num_leases(self, role: str) -> int:
        status = self.ask(role, "/tandem/status")
        status.raise_for_status()
        return int(status.json()["status"]["num_leases"])

    def metrics(self, role: str) -> dict[str, float]:
        """Samples of a worker's ``/metrics`` summed over labels; of the router's with role ``router``."""
        if role == "router":
            text = self.http.get(f"{self.control_url}/metrics").text
        else:
            text = self.ask(role, "/metrics").text
        sums: dict[str, float] = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.partition("{")[0].split(" ")[0], line.rsplit(" ", 1)[1]
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums


def process_of(stack: Stack, module: str) -> psutil.Process:
    """The worker's API process, which is the one that has an engine as its child."""
    found = []
    for process in psutil.Process(stack.launcher.pid).children(recursive=True):
        try:
            words = process.cmdline()
        except psutil.NoSuchProcess:  # one that has just ended
            continue
        if f"-m {module}" in " ".join(words) and "deploy" not in " ".join(words[:4]):
            found.append(process)
    return found[-1]


def engine_of(worker: psutil.Process) -> psutil.Process:
    """The engine core among the children of a worker's API process; the others are small helpers."""
    return max(worker.children(), key=lambda process: process.memory_info().rss)


def openai_client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


def single_engine_command(checkpoint: Path, port: int) -> list[str]:
    flags = (
        "--dtype float32 --enforce-eager --block-size 128 --max-model-len 8192 --max-num-seqs 8 --enable-prefix-caching"
    )
    flags += " --max-num-batched-tokens 1024 --kv-cache-memory-bytes 134217728 --distributed-executor-backend uni"
    flags += " --enable-auto-tool-choice --tool-call-parser minimax_m3 --enable-prompt-tokens-details"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint)]
    return [*command, "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), *flags.split()]


def single_engine_env() -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # else the one rank is a process of its own, and starts later
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


def stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def build_checkpoint(directory: Path) -> Path:
    """The nano checkpoint, built by its own command."""
    out = directory / "nano"
    subprocess.run([sys.executable, "-m", "msa_model.nano", str(out)], check=True, cwd=REPOSITORY, timeout=120)
    return out


@contextmanager
def running_engine(checkpoint: Path, log: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """One plain engine; its URL, for ``wait_until_ok``, while it still loads."""
    port = free_port()
    with log.open("wb") as out:
        process = subprocess.Popen(
            single_engine_command(checkpoint, port),
            cwd=REPOSITORY,
            env=os.environ | single_engine_env(),
            stdout=out,
            stderr=out,
        )
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            stop(process)


@contextmanager
def running_stack(checkpoint: Path, log: Path, *overrides: str) -> Iterator[Stack]:
    """A ready deployment of ``deploy/examples/cpu.yaml`` with ``KEY=VALUE`` overrides.

    At the end it must stop with exit code 0 and leave no process behind.
    """
    port, metrics_port, began = free_port(), free_port(), time.monotonic()
    settings = [f"router.port={port}", f"router.metrics_port={metrics_port}", f"state_dir={checkpoint.parent}"]
    settings += overrides
    command = [sys.executable, "-m", "deploy", "up", "--spec", "deploy/examples/cpu.yaml", "--verbose"]
    command += [word for setting in settings for word in ("--set", setting)]
    with log.open("wb") as out:
        env = os.environ | {"TANDEM_CLUSTER_TOKEN": TOKEN, "TANDEM_HANDOFF_KEY": HANDOFF_KEY}
        launcher = subprocess.Popen(command, cwd=REPOSITORY, env=env, stdout=out, stderr=out)
        tree: list[psutil.Process] = []
        try:
            url, control_url = (f"http://127.0.0.1:{number}" for number in (port, metrics_port))
            wait_until_ok(f"{url}/ready", launcher, log)
            stack = Stack(url, control_url, launcher, checkpoint, start_s=time.monotonic() - began)
            with stack.http, stack.client:
                yield stack
            tree = psutil.Process(launcher.pid).children(recursive=True)
        finally:
            stop(launcher)
    assert launcher.returncode == 0, log.read_text(errors="replace")[-4000:]
    _, alive = psutil.wait_procs(tree, timeout=5)
    assert not alive, f"left behind by the launcher: {alive}"

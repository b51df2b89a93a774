"""Starts the routers that are compared, each as a prefill/decode router on one core, with its default settings.

One setting of the peers is not their default: the policy. Theirs keeps a tree of all prompts to find prefixes, with
which a small request costs vllm-router two to three times as much; ours has no such tree, so a comparison with it would
flatter us. ``vllm-router-default`` and ``smg-default`` are the peers with nothing set.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.router.accounting import pin, with_descendants
from bench.router.control import call, wait_until

ROOT = Path(__file__).resolve().parents[2]
TANDEM = "tandem"
START_LIMIT_S, STOP_LIMIT_S = 60.0, 10.0
MAX_LOG_CHARS = 2000
Ports = Mapping[str, Sequence[int]]
Command = Callable[[Path, int, int, Ports], list[str]]


@dataclass(frozen=True, slots=True)
class Kind:
    """How one router is started and made ready.

    ``command`` is given the folder of the peers' programs, the port to listen on, a free port for metrics and the
    engines' ports; ``join`` tells a running router of its workers; ``is_ready`` asks whether it takes requests.
    """

    command: Command
    is_ready: Callable[[int, Ports], bool]
    join: Callable[[int, Ports], None] | None = None


class Running:
    """A router process, or one that only serves as a place in the table."""

    def __init__(self, name: str, port: int, process: "subprocess.Popen[bytes] | None", log: Path | None) -> None:
        self.name, self.port, self._process, self._log = name, port, process, log

    def pids(self) -> list[int]:
        """The router's processes; none where requests go to the engine directly. Raises: RuntimeError: it has ended."""
        if self._process is None:
            return []
        self.check()
        return with_descendants(self._process.pid)

    def check(self) -> None:
        """Raises: RuntimeError: the process has ended; holds the end of its log."""
        if self._process is not None and self._process.poll() is not None:
            end = self._log.read_text(encoding="utf-8", errors="replace")[-MAX_LOG_CHARS:] if self._log else ""
            raise RuntimeError(f"{self.name} has ended with {self._process.returncode}:\n{end}")

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def wait(self) -> None:
        """Wait for the end after ``terminate``; a process that takes too long is killed."""
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_LIMIT_S)
        self._process.kill()
        self._process.wait()


def start(name: str, *, peer_bin: Path, engines: Ports, core: int, folder: Path) -> Running:
    """Start a router on ``core`` and wait until it takes requests; its output goes to a file in ``folder``.

    Raises:
        RuntimeError: it ended at once.
        TimeoutError: it never became ready.
    """
    kind = KINDS[name]
    port, metrics_port = _free_port(), _free_port()
    log = folder / f"{name}.log"
    # Default settings; whether ours runs compiled is the bench's to say.
    environ = {key: value for key, value in os.environ.items() if key == "TANDEM_COMPILED" or key[:7] != "TANDEM_"}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            kind.command(peer_bin, port, metrics_port, engines),
            stdout=stream,
            stderr=stream,
            cwd=ROOT,  # the router of this tree, wherever the command was given
            env=environ,
            preexec_fn=partial(pin, core),
        )
    running = Running(name, port, process, log)

    def is_up(ask: Callable[[], bool]) -> bool:
        running.check()
        return ask()

    try:
        wait_until(lambda: is_up(lambda: call(port, "/health")[0] == 200), START_LIMIT_S, f"{name} is healthy")
        if kind.join is not None:
            kind.join(port, engines)
        wait_until(lambda: is_up(lambda: kind.is_ready(port, engines)), START_LIMIT_S, f"{name} is ready")
    except BaseException:
        running.terminate()
        running.wait()
        raise
    return running


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _urls(ports: Sequence[int]) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in ports]


def _tandem(_: Path, port: int, __: int, engines: Ports) -> list[str]:
    workers = [word for role in ("prefill", "decode") for word in (f"--{role}", ",".join(_urls(engines[role])))]
    return [sys.executable, "-m", "router", "--port", str(port), *workers]


def _round_robin(command: Command) -> Command:
    return lambda *given: [*command(*given), "--policy", "round_robin"]


def _vllm_router(peer_bin: Path, port: int, metrics_port: int, engines: Ports) -> list[str]:
    workers = [word for role in ("prefill", "decode") for url in _urls(engines[role]) for word in (f"--{role}", url)]
    place = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port)]
    # It looks for its workers every 30 s while it starts, which serves no one here.
    return [
        str(peer_bin / "vllm-router"),
        *place,
        *("--worker-startup-check-interval", "1", "--vllm-pd-disaggregation"),
        *workers,
    ]


def _smg(peer_bin: Path, port: int, metrics_port: int, _: Ports) -> list[str]:
    place = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port)]
    return [str(peer_bin / "smg"), "launch", *place, "--pd-disaggregation", "--backend", "vllm"]


def _join_smg(port: int, engines: Ports) -> None:
    # Workers named on its command line get no handoff at all over HTTP: decode would silently prefill again. Only a
    # registration can say which connector they have.
    for role in ("prefill", "decode"):
        for url in _urls(engines[role]):
            worker = {"url": url, "worker_type": role, "runtime_type": "vllm", "kv_connector": "NixlConnector"}
            status, answer = call(port, "/workers", worker)
            if status not in (200, 201, 202):
                raise RuntimeError(f"smg refused a worker with {status}: {answer.decode(errors='replace')[:200]}")


def _is_smg_ready(port: int, engines: Ports) -> bool:
    status, answer = call(port, "/readiness")
    num_workers = len(engines["prefill"]) + len(engines["decode"])
    return status == 200 and json.loads(answer).get("healthy_workers") == num_workers


def _is_healthy(port: int, _: Ports) -> bool:
    return call(port, "/health")[0] == 200


def _is_tandem_ready(port: int, _: Ports) -> bool:
    return call(port, "/ready")[0] == 200


KINDS = {
    TANDEM: Kind(_tandem, _is_tandem_ready),
    # Healthy only when all its workers are.
    "vllm-router": Kind(_round_robin(_vllm_router), _is_healthy),
    "smg": Kind(_round_robin(_smg), _is_smg_ready, _join_smg),
    "vllm-router-default": Kind(_vllm_router, _is_healthy),
    "smg-default": Kind(_smg, _is_smg_ready, _join_smg),
}


def packages(names: Iterable[str]) -> list[str]:
    """The peers' packages that these routers need. Raises: ValueError: there is no such router."""
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise ValueError(f"no such router: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    return list(dict.fromkeys(name.removesuffix("-default") for name in names if name != TANDEM))

"""Processes that can't live, hang or talk nonsense: each is ended, and the whole is given up with the reason."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from time import monotonic

import pytest

from router import process_link, processes, program, respawn
from router.app import build_parts
from router.client_port import ClientPort
from router.config import RouterConfig
from router.process_parent import ProcessesFailed
from router.processes import Processes
from router.worker_news import TellingRegistry
from tests.integration.router.processes import START_LIMIT_S
from tests.integration.router.serving import eventually
from tests.unit.router.factories import make_heartbeat
from wire.worker import WorkerHeartbeat

ENDS_AT_ONCE = "raise SystemExit(3)"
SLEEPS = "import time; time.sleep(600)"
TALKS_NONSENSE = f"import os, sys; os.write(int(sys.argv[1]), b'nonsense' + bytes([10])); {SLEEPS}"
CONFIG = RouterConfig(processes=2, metrics_port=9000, shutdown_timeout_s=0, release_timeout_s=0.01)


class House:
    """A parent whose children are programs of the test's choice."""

    def __init__(self, port: ClientPort) -> None:
        self.registry = TellingRegistry(ttl_s=600, clock=monotonic)
        parts = build_parts(CONFIG, registry=self.registry)
        self.processes = Processes(parts, self.registry, port)

    async def failure(self) -> str:
        """Why they were given up."""
        async with asyncio.timeout(START_LIMIT_S):
            await self.processes.run()
        assert self.processes.failure is not None
        return self.processes.failure


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    for name in ("FIRST_DELAY_S", "MAX_DELAY_S"):
        monkeypatch.setattr(respawn, name, 0.001)
    monkeypatch.setattr(processes, "KILL_MARGIN_S", 0.01)
    with closing(ClientPort(CONFIG.host, 0, CONFIG.processes)) as port:
        yield House(port)


def run_instead(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    def spawn(sockets: Sequence[socket.socket]) -> "subprocess.Popen[bytes]":
        fds = [sock.fileno() for sock in sockets]
        return subprocess.Popen([sys.executable, "-I", "-S", "-c", program, *map(str, fds)], pass_fds=fds)

    monkeypatch.setattr(process_link, "_spawn", spawn)


@pytest.mark.parametrize(("program", "how"), [(ENDS_AT_ONCE, "exit code 3"), (TALKS_NONSENSE, "killed by SIGKILL")])
async def test_processes_that_can_not_live_are_given_up_with_how_they_ended(
    house: House, monkeypatch: pytest.MonkeyPatch, program: str, how: str
) -> None:
    run_instead(monkeypatch, program)
    failure = await house.failure()
    assert failure.endswith(f" ended at once {respawn.MAX_EARLY_ENDS + 1} times, the last time: {how}")


async def test_processes_that_can_not_be_started_are_given_up_with_the_reason(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spawn(sockets: Sequence[socket.socket]) -> "subprocess.Popen[bytes]":
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(process_link, "_spawn", spawn)
    assert "could not be started: [Errno 12] Cannot allocate memory" in await house.failure()


async def test_one_that_reads_nothing_is_killed_before_it_takes_all_memory(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_instead(monkeypatch, SLEEPS)
    monkeypatch.setattr(process_link, "MAX_UNSENT_BYTES", 10_000)
    long = make_heartbeat(fingerprint={"x": "y" * 100_000})

    async def beat(heartbeat: WorkerHeartbeat) -> None:
        while True:
            house.registry.heartbeat(heartbeat)
            await asyncio.sleep(0.001)

    beating = asyncio.create_task(beat(long))
    assert "killed by SIGKILL" in await house.failure()
    beating.cancel()


async def test_one_that_does_not_end_is_killed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, SLEEPS)
    running = asyncio.create_task(house.processes.run())
    await eventually(lambda: len(house.processes.pids()) == CONFIG.processes)
    house.processes.stop()
    async with asyncio.timeout(START_LIMIT_S):
        await running
    assert (house.processes.failure, house.processes.pids()) == (None, [])


def test_the_command_ends_with_1_and_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(config: RouterConfig) -> None:
        raise ProcessesFailed("process 1 ended at once")

    monkeypatch.setattr(program, "serve_processes", serve)
    for name in ("configure_logging", "keep_freed_memory", "search_cycles_rarely"):
        monkeypatch.setattr(program, name, lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        program.main(["--processes", "2", "--metrics-port", "9000"])
    assert ended.value.code == 1
    assert capsys.readouterr().err == "router: process 1 ended at once\n"

"""Measures: starts mocks and routers, then sends each case to each router in turn, round after round."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import uvloop

from bench.router.accounting import cpu_s, peak_rss_mb, pin
from bench.router.awake import kept_awake
from bench.router.cases import Case
from bench.router.control import call
from bench.router.load import opened
from bench.router.routers import ROOT, STOP_LIMIT_S, Running, start

DIRECT = "direct"
WARM_UP_S = 0.5
# After the last answer a router still writes its log line and ends its tasks, which is work for that request.
SETTLE_S = 0.02


@dataclass(frozen=True, slots=True)
class Effort:
    """How long: seconds of load a round, and rounds of each router and case."""

    seconds: float = 4.0
    num_rounds: int = 5


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core the routers have and which one mocks and load share."""

    router: int
    load: int
    may_halt: bool = False
    """Also where latency is measured at a rate that leaves them idle for most of the time."""

    @contextmanager
    def ready_for(self, case: Case) -> Iterator[None]:
        """The cores as they are while ``case`` is measured."""
        is_awake = case.rate_rps is not None and not self.may_halt
        with kept_awake((self.router, self.load), os.getpid()) if is_awake else nullcontext():
            yield


def measure(
    cases: Sequence[Case], routers: Sequence[str], *, peer_bin: Path, effort: Effort, cores: Cores
) -> list[dict[str, Any]]:
    """Every case with every router, and with none; the process stays on the load's core afterwards.

    Raises:
        RuntimeError, TimeoutError: a router or the mocks did not start, or ended.
    """
    pin(cores.load)
    with tempfile.TemporaryDirectory() as folder, _engines() as (engines, mock_pid):
        places = [Running(DIRECT, engines["whole"][0], None, None)]
        try:
            for name in routers:
                log_folder = Path(folder)
                places.append(start(name, peer_bin=peer_bin, engines=engines, core=cores.router, folder=log_folder))
            with _without_collections():
                measured = []
                for case in cases:
                    with cores.ready_for(case):
                        measured.append(_measure_case(case, places, effort, mock_pid, engines["control"][0]))
                return measured
        finally:
            for place in places:
                place.terminate()
            for place in places:
                place.wait()


def _measure_case(
    case: Case, places: Sequence[Running], effort: Effort, mock_pid: int, control_port: int
) -> dict[str, Any]:
    rounds: dict[str, list[dict[str, Any]]] = {place.name: [] for place in places}
    for number in range(effort.num_rounds):
        # What the machine does meanwhile meets all of them alike, and none is always the first.
        first = number % len(places)
        for place in (*places[first:], *places[:first]):
            rounds[place.name].append(uvloop.run(_round(case, place, effort.seconds, mock_pid, control_port)))
            gc.collect()
    return {
        "name": case.name,
        "about": case.about,
        "unit": "token" if case.name == "stream" else "request",
        "routers": rounds,
    }


async def _round(case: Case, place: Running, seconds: float, mock_pid: int, control_port: int) -> dict[str, Any]:
    async with opened(place.port, case) as load:
        await load.run(min(WARM_UP_S, seconds))
        # Nothing is under way between the two, so all that is counted below is of this round.
        call(control_port, "/reset", {})
        pids = place.pids()
        before, start_s = _books(pids, mock_pid), perf_counter()
        tally = await load.run(seconds)
        wall_s = perf_counter() - start_s
        await asyncio.sleep(SETTLE_S)
        after = _books(place.pids(), mock_pid)
        counts = json.loads(call(control_port, "/counts")[1])
    return {
        **tally.report(),
        "wall_s": round(wall_s, 4),
        "cpu_s": {name: round(after[name] - before[name], 6) for name in after},
        "rss_mb": [round(peak_rss_mb(pid), 1) for pid in place.pids()],
        "engines": counts,
    }


def _books(pids: Sequence[int], mock_pid: int) -> dict[str, float]:
    return {"router": sum(map(cpu_s, pids)), "mocks": cpu_s(mock_pid), "load": cpu_s(os.getpid())}


@contextmanager
def _engines() -> Iterator[tuple[Mapping[str, list[int]], int]]:
    """The mock engines' ports by role and their process id. Raises: RuntimeError: they did not start."""
    command = [sys.executable, "-m", "bench.router.engines"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the mock engines did not start")
            yield json.loads(line), process.pid
        finally:
            process.terminate()
            process.wait(STOP_LIMIT_S)


@contextmanager
def _without_collections() -> Iterator[None]:
    """A garbage collection of the load generator would look like a slow router."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

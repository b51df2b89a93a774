"""Measure routers side by side over mock engines, or hold a result to must-2.

The router has one core, mocks and load have another. Peers are installed into a virtual environment of their own.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.router.accounting import pick_cores
from bench.router.cases import CASES, named
from bench.router.must import verdicts
from bench.router.pauses import probe
from bench.router.peer_venv import ensure
from bench.router.report import heading, judged, tables
from bench.router.routers import ROOT, packages
from bench.router.run import Cores, Effort, measure

ROUTERS = ("tandem", "vllm-router", "smg")
PEER_VENV = Path("build") / "router-peers"
PROBE_S = 5.0
LIBRARIES = ("fastapi", "uvicorn", "uvloop", "httptools", "httpx")
# Where results are kept or things installed: no part of what was measured.
PLACES = ("--out", "--commit", "--peer-venv")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or check a result; 1 if a must fails, 2 where it can't be measured."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    if options.check:
        return check(json.loads(Path(options.check).read_text(encoding="utf-8")))
    try:
        result = run(options, given)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"bench.router: {error}", file=sys.stderr)
        return 2
    print(heading(result), "", tables(result), sep="\n")
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if options.check is None else check(result)


def check(result: dict[str, Any]) -> int:
    """Print a line for each demand of must-2.

    Returns:
        0 if the result keeps them all, else 1.
    """
    try:
        found = verdicts(result)
    except ValueError as error:
        print(f"FAIL: {error}")
        return 1
    print(judged(found))
    return 0 if all(verdict.is_met for verdict in found) else 1


def run(options: argparse.Namespace, given: Sequence[str]) -> dict[str, Any]:
    """Measure all cases and say under which circumstances.

    Raises:
        ValueError: an unknown case or router, or a machine with one core.
        RuntimeError, OSError: a peer can't be installed, or a router or the mocks did not start.
    """
    cases = named(options.cases)
    form = _form(is_wanted=not options.sources)
    versions = ensure(options.peer_venv, packages(options.routers))
    router_core, load_core = pick_cores(os.sched_getaffinity(0))
    effort = Effort(options.seconds, options.rounds)
    load_before = os.getloadavg()[0]
    pauses_ms = [probe(router_core, PROBE_S)]
    measured = measure(
        cases,
        options.routers,
        peer_bin=options.peer_venv.resolve() / "bin",
        effort=effort,
        cores=Cores(router=router_core, load=load_core, may_halt=options.may_halt),
    )
    pauses_ms.append(probe(router_core, PROBE_S))
    return {
        "command": " ".join(["python -m bench.router", *_said(given)]),
        "commit": options.commit or _commit(),
        "hardware": f"{os.cpu_count()} CPU cores ({platform.machine()}, {_cpu_name()})",
        "versions": {"Python": platform.python_version(), "hot path": form, **_libraries(), **versions},
        "cores": {"router": router_core, "load": load_core, "may_halt": options.may_halt},
        "load_average": [load_before, os.getloadavg()[0]],
        "pauses_ms": pauses_ms,
        "seconds": effort.seconds,
        "rounds": effort.num_rounds,
        "cases": measured,
    }


def _form(*, is_wanted: bool) -> str:
    """Which form of our router runs from here on; the compiled one is made where it is missing.

    Raises: RuntimeError: it can't be made; holds the compiler's words.
    """
    os.environ["TANDEM_COMPILED"] = "1" if is_wanted else "0"
    if not is_wanted:
        return "not compiled"
    ended = subprocess.run([sys.executable, "-m", "router.compile"], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{ended.stderr.strip()}\nMeasure without it: --sources")
    return "compiled"


def _said(given: Sequence[str]) -> list[str]:
    kept = [word for word in given if word != "--check"]
    for name in PLACES:
        if name in kept:
            at = kept.index(name)
            del kept[at : at + 2]
    return kept


def _commit() -> str:
    """The checked-out commit, with a word where files differ from it."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(ROOT), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def _libraries() -> dict[str, str]:
    return {name: metadata.version(name) for name in LIBRARIES}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.router", description=__doc__)
    parser.add_argument("--cases", type=_words, default=tuple(CASES), help=f"of {','.join(CASES)}")
    parser.add_argument("--routers", type=_words, default=ROUTERS, help="also: vllm-router-default, smg-default")
    parser.add_argument("--seconds", type=float, default=Effort().seconds, help="of load in each round")
    parser.add_argument("--rounds", type=int, default=Effort().num_rounds, help="of each router and case")
    parser.add_argument("--peer-venv", type=Path, default=ROOT / PEER_VENV, help=f"default: {PEER_VENV}")
    parser.add_argument("--may-halt", action="store_true", help="let idle cores halt in paced cases too")
    parser.add_argument("--sources", action="store_true", help="our router as it is, without compiling its hot path")
    parser.add_argument("--commit", default="", help="where git can't say it")
    parser.add_argument("--out", default="", metavar="FILE", help="result file, JSON")
    check_help = "hold the result of this run, or of FILE without a run, to must-2; 1 if it fails"
    parser.add_argument("--check", nargs="?", const="", default=None, metavar="FILE", help=check_help)
    return parser


if __name__ == "__main__":
    sys.exit(main())

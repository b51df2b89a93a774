"""Measure on this CUDA GPU (``python -m bench.kernels --out FILE``), or hold a result to must-3 (``--check FILE``)."""

import argparse
import importlib
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

from bench.kernels.case import Bench, Case, CaseFile
from bench.kernels.must import name_of, verdicts
from bench.kernels.report import heading, judged, table

OPS = tuple(sorted(file.stem.removesuffix("_cases") for file in Path(__file__).parent.glob("*_cases.py")))
PACKAGES = ("torch", "triton", "vllm")
# H200, dense, from its data sheet; integer lanes: 64 a cycle and multiprocessor.
DATA_SHEET_FP8_TFLOPS, INT_LANES_PER_SM = 1979.0, 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or check a result; 1 if a must fails."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    if options.check:
        return check(json.loads(Path(options.check).read_text(encoding="utf-8")))
    result = run(options, given)
    text = "\n\n".join([heading(result), *(f"## {op}\n\n{table(result, op)}" for op in options.ops)])
    print(text)
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        Path(options.out).with_suffix(".md").write_text(f"# Kernels\n\n{text}\n", encoding="utf-8")
    return 0


def check(result: dict[str, Any]) -> int:
    """Print a line for each demand of must-3.

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
    """Measure all cases of the ops that were asked for and say under which circumstances."""
    import torch

    from bench.kernels.timing import read_gb_per_s

    torch.manual_seed(0)
    properties = torch.cuda.get_device_properties(0)
    bench = Bench(options.peer, properties.L2_cache_size)
    result = _frame(options, given) | {"read_gb_per_s": read_gb_per_s()}
    result["cases"] = [_measure(case) for op in options.ops for case in _cases_of(op)(bench)]
    return result


def _cases_of(op: str) -> CaseFile:
    """Each op's file is imported when it is asked for, and needs Triton only then."""
    found: CaseFile = importlib.import_module(f"bench.kernels.{op}_cases").cases
    return found


def _measure(case: Case) -> dict[str, Any]:
    from bench.kernels.timing import median_us

    us = {name: median_us(calls) for name, calls in case.prepare().items()}
    size = asdict(case.size) | {"shape": case.size.shape.name}
    measured = {"op": case.op, **size, "floor": asdict(case.floor), "us": us}
    print(name_of(measured), {name: round(value, 1) for name, value in us.items()}, file=sys.stderr, flush=True)
    return measured


def _frame(options: argparse.Namespace, given: Sequence[str]) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    clock_ghz = properties.clock_rate / 1e6
    int_tops = properties.multi_processor_count * INT_LANES_PER_SM * clock_ghz / 1e3
    return {
        "command": " ".join(["python -m bench.kernels", *_said(given)]),
        "commit": options.commit or _commit(),
        "hardware": f"{properties.name}, CUDA {torch.version.cuda}, {os.cpu_count()} CPU cores",
        "versions": {"Python": platform.python_version(), **_versions()},
        "ceilings": {
            "tflops": DATA_SHEET_FP8_TFLOPS,
            "int_tops": int_tops,
            "text": f"floors of arithmetic: {DATA_SHEET_FP8_TFLOPS:.0f} TFLOP/s of FP8 (H200's data sheet), "
            f"{int_tops:.1f} T integer operations/s ({INT_LANES_PER_SM} lanes a multiprocessor, {clock_ghz:.2f} GHz)",
        },
    }


def _said(given: Sequence[str]) -> list[str]:
    """The options that shape the measurement: without where things are."""
    kept = list(given)
    for name in ("--out", "--commit", "--peer"):
        if name in kept:
            at = kept.index(name)
            del kept[at : at + 2]
    return kept


def _commit() -> str:
    """The checked-out commit, with a word where tracked files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        is_dirty = bool(git("status", "--porcelain", "--untracked-files=no"))
        return git("rev-parse", "HEAD") + (" with changes" if is_dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _ops(text: str) -> tuple[str, ...]:
    named = tuple(text.split(","))
    if not set(named) <= set(OPS):
        raise argparse.ArgumentTypeError(f"ops are {', '.join(OPS)}")
    return named


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    parser.add_argument("--ops", type=_ops, default=OPS, help=f"of {', '.join(OPS)}")
    parser.add_argument("--peer", default="", metavar="DIR", help="upstream's index_topk.py and sparse_attn.py")
    parser.add_argument("--commit", default="", help="where git can't say it")
    parser.add_argument("--out", default="", help="result file, JSON; a .md for readers is put beside it")
    parser.add_argument("--check", default="", metavar="FILE", help="only hold a result to must-3; 1 if it fails")
    return parser


if __name__ == "__main__":
    sys.exit(main())

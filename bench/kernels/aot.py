"""Compile every kernel for every target without a GPU (``python -m bench.kernels.aot``) and hold it to must-2.

Prints a line for each kernel and target; 1 if one fails to compile, a decode kernel spills, or code for sm_100 or
sm_103 lacks QMUL4 or converts E2M1 to F16.
"""

import argparse
import importlib
import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.kernels.compiled import Report, compile_specimen
from bench.kernels.specimens import TARGETS, Specimen


def all_specimens(target: str) -> list[Specimen]:
    """Of every file of specimens beside this one."""
    files = sorted(file.stem for file in Path(__file__).parent.glob("*specimens.py"))
    modules = [importlib.import_module(f"bench.kernels.{name}") for name in files]
    return [specimen for module in modules for specimen in module.specimens(TARGETS[target])]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile all, print a table; 1 if anything fails."""
    parser = argparse.ArgumentParser(prog="python -m bench.kernels.aot", description=__doc__)
    parser.add_argument("--targets", default=",".join(TARGETS), help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="compilers at once")
    options = parser.parse_args(arguments)
    work = [(target, number) for target in options.targets.split(",") for number in range(len(all_specimens(target)))]
    # Compilers keep global state; each job gets a process that has inherited none.
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        reports = pool.starmap(_compile, work, chunksize=1)
    print(table(reports))
    failures = [f"{report.kernel} for {report.target}: {text}" for report in reports for text in report.failures]
    print(*(f"FAIL: {failure}" for failure in failures), sep="\n")
    print(f"{len(reports) - len({f.split(':')[0] for f in failures})} of {len(reports)} kernels pass")
    return 1 if failures or not reports else 0


def _compile(target: str, number: int) -> Report:
    warnings.simplefilter("ignore")  # of Triton's next version
    return compile_specimen(all_specimens(target)[number], target)


def table(reports: Iterable[Report]) -> str:
    """One line a kernel and target, in columns."""
    lines = [f"{'kernel':40} {'target':8} {'regs':>5} {'shared':>7} {'spills':>6} {'int/8':>6} {'QMUL4':>6}"]
    for report in reports:
        ops = "" if report.int_ops_per_8_values is None else f"{report.int_ops_per_8_values:.1f}"
        lines.append(
            f"{report.kernel:40} {report.target:8} {report.registers:5} {report.shared_bytes:7} {report.spills:6} "
            f"{ops:>6} {report.num_qmul4 or '':>6}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

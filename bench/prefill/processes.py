"""The ranks of a run as processes, and what they hand back."""

import json
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.prefill.rank import Job, run_rank

# A rank that lost its peer would wait for it.
LIMIT_S = 560.0


def run_ranks(job: Job, limit_s: float = LIMIT_S) -> list[list[dict[str, Any]]]:
    """The figures of each rank in their order.

    Raises:
        RuntimeError: a rank failed, or did not end within ``limit_s``; the others are killed.
    """
    # A child must not inherit a device that its parent has opened, nor can it do without vLLM, whose import takes long.
    import torch

    context: Any = multiprocessing.get_context("spawn" if torch.cuda.is_initialized() else "fork")
    num_ranks = 1 if job.is_alone else job.tp_size
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / f"{rank}.json" for rank in range(num_ranks)]
        ranks = [
            context.Process(target=_run, args=(job, rank, f"{folder}/meeting", out)) for rank, out in enumerate(outs)
        ]
        for process in ranks:
            process.start()
        try:
            _wait(ranks, time.monotonic() + limit_s)
        finally:
            for process in ranks:
                process.kill()
                process.join()
        return [json.loads(out.read_text(encoding="utf-8")) for out in outs]


def _wait(ranks: list[Any], until_s: float) -> None:
    while any(process.is_alive() for process in ranks):
        failed = [rank for rank, process in enumerate(ranks) if process.exitcode not in (None, 0)]
        if failed:
            raise RuntimeError(f"rank {failed[0]} ended with {ranks[failed[0]].exitcode}")
        if time.monotonic() > until_s:
            raise RuntimeError("the ranks did not end in time")
        time.sleep(0.05)
    for rank, process in enumerate(ranks):
        if process.exitcode != 0:
            raise RuntimeError(f"rank {rank} ended with {process.exitcode}")


def _run(job: Job, rank: int, meeting: str, out: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "VLLM_DIST_IDENT": meeting.replace("/", "-")}
    out.write_text(json.dumps(run_rank(job, rank, meeting)), encoding="utf-8")

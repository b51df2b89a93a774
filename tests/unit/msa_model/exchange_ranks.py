"""``python -m tests.unit.msa_model.exchange_ranks OUT``: every collective among 2 and 4 ranks, over gloo.

Writes, for each number of ranks, what each rank got, what it counted and what crossed the loopback device.
"""

import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import GemmaRMSNorm

from msa_model.exchange import Exchange
from msa_model.row_format import ExactRows, MXFP8Rows
from msa_model.steps import Steps, run_together

RANKS = (2, 4)
NUM_ROWS, WIDTH = 9, 64  # no multiple of the ranks
BIG_ROWS, BIG_WIDTH = 2048, 1024  # so that headers of TCP are little beside it
NUM_TRIES = 3
EXCHANGED = ("gather", "swap")


def rows_of(rank: int, num_rows: int = NUM_ROWS, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(rank))


def norm() -> GemmaRMSNorm:
    """With weights that are not all one."""
    with set_current_vllm_config(VllmConfig()):
        made = GemmaRMSNorm(WIDTH)
    made.weight.data = rows_of(99, 1)[0] * 0.1
    return made


class Router:
    """Scores that tell what they were made of."""

    num_experts = 8

    def scores(self, normed: torch.Tensor) -> torch.Tensor:
        return normed[:, : self.num_experts] * 3


ROUTER = Router()


def run(steps: Steps[Any]) -> Any:
    return run_together([steps])[0]


def collectives(exchange: Exchange, rank: int) -> dict[str, Any]:
    """What this rank gets from each."""
    own = rows_of(rank, 3)
    summed = own.clone()
    return {
        "gather": run(exchange.gather(own)),
        "gather_exact": run(exchange.gather_exact(own)),
        "gather_norm": run(exchange.gather_norm(summed, rows_of(rank + 50, 3), norm())),
        "routed": run(exchange.gather_routed_norm(own.clone(), None, norm(), ROUTER)),
        "summed": summed,
        "swap": run(exchange.swap(exchange.pad(rows_of(rank)))),
        "reduce_scatter": run(exchange.reduce_scatter(exchange.pad(rows_of(rank)))),
        "all_reduce": run(exchange.all_reduce(rows_of(rank))),
        "two at once": run_together([exchange.all_reduce(rows_of(rank)), exchange.gather_exact(own)]),
        "own_rows": exchange.own_rows(rows_of(0)),
    }


def crossed_and_counted(exchange: Exchange) -> dict[str, list[tuple[int, int]]]:
    """For some tries of each collective: bytes over the loopback device, and those that all ranks counted."""
    calls = {
        "gather": lambda: exchange.gather(rows_of(0, BIG_ROWS // exchange.size, BIG_WIDTH)),
        "swap": lambda: exchange.swap(rows_of(0, BIG_ROWS, BIG_WIDTH)),
        "all_reduce": lambda: exchange.all_reduce(rows_of(0, BIG_ROWS, BIG_WIDTH)),
    }
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in calls}
    for name, call in calls.items():
        for _ in range(NUM_TRIES):
            counted = sum(exchange.sent_bytes.values())
            dist.barrier()
            before = loopback_bytes()
            dist.barrier()
            run(call())
            dist.barrier()
            crossed = loopback_bytes() - before
            dist.barrier()
            found[name].append((crossed, (sum(exchange.sent_bytes.values()) - counted) * exchange.size))
    return found


def loopback_bytes() -> int:
    return int(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)


def run_rank(size: int, rank: int, meeting: str, out: Path) -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    dist.init_process_group("gloo", rank=rank, world_size=size, init_method=f"file://{meeting}")
    group = dist.group.WORLD
    assert group is not None
    exact, rounded = Exchange(group, ExactRows()), Exchange(group, MXFP8Rows())
    results = {
        "exact": collectives(exact, rank),
        "mxfp8": collectives(rounded, rank),
        "bytes": crossed_and_counted(Exchange(group, MXFP8Rows())),
    }
    torch.save(results, out)
    dist.destroy_process_group()


def main(out: Path) -> None:
    context, results = multiprocessing.get_context("fork"), {}
    with tempfile.TemporaryDirectory() as folder:
        for size in RANKS:
            outs = [Path(folder) / f"{size}-{rank}.pt" for rank in range(size)]
            meeting = f"{folder}/meeting-{size}"
            ranks = [
                context.Process(target=run_rank, args=(size, rank, meeting, path)) for rank, path in enumerate(outs)
            ]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join(60)
                process.kill()
            results[size] = [torch.load(path) for path in outs if path.exists()]
    torch.save(results, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

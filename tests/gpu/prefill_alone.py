"""``python -m tests.gpu.prefill_alone OUT [DEVICE]``: every way to split a step, in a group of one rank.

What is exchanged comes back to the rank that sent it, over the same collectives and streams, so one GPU shows whether
the kernels give each part of a step what they give the whole.
"""

import json
import sys
from pathlib import Path

from bench.prefill.case import Case
from bench.prefill.processes import run_ranks
from bench.prefill.rank import Job
from wire.token_split import TokenSplit

# Steps of odd sizes: a chunk that ends within a block, and halves that do.
CASES = (Case(2, 4096, 4096), Case(2, 5001, 2133))


def main(out: Path, device: str = "cuda") -> None:
    # A worker of one rank is refused, as it has nothing to exchange.
    setattr(TokenSplit, "check_ranks", lambda *_: None)  # noqa: B010 - a method that mypy would keep
    job = Job(
        tp_size=1,
        is_alone=False,
        cases=CASES,
        is_small=device == "cpu",
        device=device,
        rounds=3,
        budget_ms=1000.0,
        traced=(),
    )
    [figures] = run_ranks(job)
    out.write_text(json.dumps(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])

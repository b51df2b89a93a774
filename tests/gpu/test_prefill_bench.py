"""A prefill step split over two GPUs and in time, beside plain tensor parallelism in one run; held to its limits."""

import os
import subprocess
import sys
from pathlib import Path

from tests.stack import REPOSITORY

RESULT = Path(os.environ.get("TANDEM_GPU_RESULTS", REPOSITORY / "bench" / "results")) / "prefill-h200x2.json"


def test_split_prefill_holds_its_limits() -> None:
    command = [sys.executable, "-m", "bench.prefill", "--device", "cuda", "--out", str(RESULT)]
    if commit := os.environ.get("TANDEM_COMMIT"):  # where the tree is no checkout
        command += ["--commit", commit]
    subprocess.run(command, check=True, cwd=REPOSITORY, timeout=580)
    check = [sys.executable, "-m", "bench.prefill", "--check", str(RESULT)]
    subprocess.run(check, check=True, cwd=REPOSITORY, timeout=60)

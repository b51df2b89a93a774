"""Rows against other layouts, vLLM's own connector and a plain peer copy, on the same bytes; held to its limits."""

import os
import subprocess
import sys
from pathlib import Path

from tests.stack import REPOSITORY

RESULT = Path(os.environ.get("TANDEM_GPU_RESULTS", REPOSITORY / "bench" / "results")) / "transfer-h200x2.json"


def test_rows_hold_their_limits() -> None:
    command = [sys.executable, "-m", "bench.transfer", "--device", "cuda", "--out", str(RESULT)]
    if commit := os.environ.get("TANDEM_COMMIT"):  # where the tree is no checkout
        command += ["--commit", commit]
    subprocess.run(command, check=True, cwd=REPOSITORY, timeout=540)
    subprocess.run(
        [sys.executable, "-m", "bench.transfer", "--check", str(RESULT)], check=True, cwd=REPOSITORY, timeout=60
    )

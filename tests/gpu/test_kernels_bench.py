"""Kernels beside upstream's on the same work in one run; held to their limits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack import REPOSITORY

RESULT = Path(os.environ.get("TANDEM_GPU_RESULTS", REPOSITORY / "bench" / "results")) / "kernels-h200.json"


@pytest.mark.one_gpu
def test_kernels_hold_their_limits() -> None:
    command = [sys.executable, "-m", "bench.kernels", "--out", str(RESULT)]
    if folder := os.environ.get("TANDEM_KERNEL_PEER"):  # where vLLM is not installed
        command += ["--peer", folder]
    subprocess.run(command, check=True, cwd=REPOSITORY, timeout=540)
    check = [sys.executable, "-m", "bench.kernels", "--check", str(RESULT)]
    subprocess.run(check, check=True, cwd=REPOSITORY, timeout=60)

"""The launcher over stand-in processes, as a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.deploy.process_tree import END_LIMIT_S, Launch

LAUNCH = (sys.executable, str(Path(__file__).with_name("launch_stand_ins.py")))
FAST = ("restart.initial_backoff_s=0.05", "restart.max_backoff_s=0.05", "timeouts.drain_s=0.5", "timeouts.kill_s=0.5")


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    started: list[subprocess.Popen[str]] = []

    def start(
        *behaviours: str, overrides: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        options = [f"--set={override}" for override in (*FAST, *overrides)]
        started.append(
            subprocess.Popen(
                [*LAUNCH, str(tmp_path), *behaviours, *options],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, **(env or {})},
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
    for process in started:
        process.wait(END_LIMIT_S)
        assert process.stdout is not None
        process.stdout.close()

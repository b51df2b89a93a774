"""The checks of ``make lint`` hold, so that a test run alone says so too."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

BIN = Path(sys.executable).parent
COMMANDS = [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"], ["lint-imports", "--no-cache"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_lint_check_has_nothing_to_say(command: list[str]) -> None:
    ended = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr

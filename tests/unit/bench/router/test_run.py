"""A whole measurement, as small as it can be: this router alone, real sockets, every answer checked."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.router.__main__ import main
from bench.router.must import SILENT_FAULTS


@pytest.fixture(autouse=True)
def _own_cores() -> Iterator[None]:
    """The measurement pins this process to a core; the tests after it get theirs back."""
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)


def test_a_small_run_measures_both_kinds_of_answer_and_writes_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    words = "--cases small32,paced --routers tandem --seconds 0.2 --rounds 1 --sources"  # compiling takes minutes
    assert main([*words.split(), "--out", str(out), "--commit", "c0ffee"]) == 0
    result = json.loads(out.read_text())
    assert result["command"] == f"python -m bench.router {words}"
    assert str(tmp_path) not in out.read_text()
    for case in result["cases"]:
        for name in ("direct", "tandem"):
            (one,) = case["routers"][name]
            assert one["num_requests"] > 0
            assert one["errors"] == {}
            assert [one["engines"][fault] for fault in SILENT_FAULTS] == [0] * len(SILENT_FAULTS)
        (ours,) = case["routers"]["tandem"]
        assert ours["cpu_s"]["router"] > 0
        assert ours["engines"]["granted"] == ours["engines"]["read"] == ours["num_requests"]
    assert "### small32" in capsys.readouterr().out


def test_an_unknown_case_is_said_and_nothing_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cases", "tiny", "--routers", "tandem"]) == 2
    assert "no such case: tiny" in capsys.readouterr().err

"""A whole measurement on a CPU, as small as it can be: two processes, real NIXL, checked bytes."""

import json
from pathlib import Path

import pytest

from bench.transfer.__main__ import main


def test_a_small_run_measures_rows_and_pages_and_writes_both_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    words = "--device cpu --blocks 2 --requests 2 --patterns adjacent,descending --peers copy,rows,rows_sorted,pages"
    arguments = [*words.split(), "--min-rounds", "1", "--budget-s", "0", "--out", str(out), "--commit", "c0ffee"]
    assert main(arguments) == 0
    result = json.loads(out.read_text())
    assert result["command"] == f"python -m bench.transfer {words} --min-rounds 1 --budget-s 0"
    assert str(tmp_path) not in out.read_text()
    assert (result["device"], result["commit"], result["row_bytes"]) == ("cpu", "c0ffee", 1_822_720)
    adjacent, descending = result["cases"]
    assert [adjacent["peers"][name]["descriptors"] for name in ("rows", "pages")] == [2, 250]
    assert [descending["peers"][name]["descriptors"] for name in ("rows", "rows_sorted", "pages")] == [2, 2, 250]
    assert all(peer["gb_per_s"] > 0 for case in result["cases"] for peer in case["peers"].values())
    assert "| 2 | adjacent | 2 |" in capsys.readouterr().out

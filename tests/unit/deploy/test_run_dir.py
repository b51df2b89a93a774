"""The run directory is private, held by one launcher, and keeps one older log."""

import json
from pathlib import Path

import pytest

from deploy.run_dir import AlreadyRunning, RunDir


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_folder_configuration_and_log_are_readable_by_their_user_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    with RunDir(tmp_path / "run") as run_dir:
        config, log = run_dir.write_config("w", {"a": 1}), run_dir.new_log("w")
        assert [mode(path) for path in (run_dir.path, config, log)] == [0o700, 0o600, 0o600]
        assert json.loads(config.read_text()) == {"a": 1}


def test_a_second_launcher_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    with RunDir(tmp_path), pytest.raises(AlreadyRunning, match=r"process \d+"), RunDir(tmp_path):
        pass


def test_the_folder_is_free_again_after_the_first_left(tmp_path: Path) -> None:
    with RunDir(tmp_path):
        pass
    with RunDir(tmp_path) as run_dir:
        assert run_dir.path == tmp_path


def test_the_log_of_the_previous_run_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    with RunDir(tmp_path) as run_dir:
        run_dir.new_log("w").write_text("old")
        assert run_dir.new_log("w").read_text() == ""
        assert (tmp_path / "w.log.1").read_text() == "old"

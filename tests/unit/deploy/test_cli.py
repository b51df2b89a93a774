"""The command line: helpful, and with exit codes that scripts can trust."""

import socket
from pathlib import Path

import pytest

from deploy.cli import main


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["check", "--help"], ["status", "--help"]])
def test_help_explains_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "usage: tandem" in capsys.readouterr().out


def test_check_shows_the_processes_of_the_shipped_spec(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--port", "8123"]) == 0
    output = capsys.readouterr().out
    assert "http://127.0.0.1:8123" in output
    assert all(f"-m {module}" in output for module in ("router", "prefill_worker", "decode_worker"))


def test_a_wrong_key_gives_2_and_one_message_without_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--set", "prefill.replica=2"]) == 2
    error = capsys.readouterr().err
    assert "  prefill.replica: no such key" in error.splitlines()
    assert "Traceback" not in error


def test_a_wrong_spec_stops_up_before_anything_is_started(tmp_path: Path) -> None:
    assert main(["up", "--set", f"state_dir={tmp_path}", "--set", "prefill.replicas=0"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_up_on_a_taken_port_gives_2_and_names_the_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert main(["up", "--set", f"state_dir={tmp_path}", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"router can't start: port {port} on 127.0.0.1 is already in use" in error
    assert "make serve PORT=N" in error


def test_status_of_nothing_gives_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert main(["status", "--router", f"http://127.0.0.1:{port}"]) == 1
    assert "no router answers" in capsys.readouterr().err


def test_status_without_a_deployment_here_gives_1_and_says_how_to_name_a_router(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--set", f"state_dir={tmp_path}"]) == 1
    error = capsys.readouterr().err
    assert str(tmp_path / "run" / "cpu") in error
    assert "--router URL" in error


def test_an_unwritable_state_dir_gives_1_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    assert main(["up", "--set", "router.port=auto", "--set", f"state_dir={blocker}"]) == 1
    assert str(blocker) in capsys.readouterr().err

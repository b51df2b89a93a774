"""The launcher over stand-in processes: it starts, restarts, gives up and stops without leaving anything behind."""

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from deploy.status import read_addresses
from tests.unit.deploy.process_tree import (
    END_LIMIT_S,
    Launch,
    Watched,
    command_line,
    read_until,
    tree_below,
    wait_all_up,
)


def log_of(tmp_path: Path, name: str) -> str:
    return (tmp_path / "run" / "cpu" / f"{name}.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_ends_every_process_and_the_launcher_with_0(launch: Launch, number: signal.Signals) -> None:
    process = launch("prefill=family", "decode=family")
    wait_all_up(process)
    below = tree_below(process.pid)
    assert len(below) == 3 * 2 + 2 * 2  # supervisor and child of each, and the two grandchildren of each worker
    with Watched(below) as watched:
        process.send_signal(number)
        assert process.wait(END_LIMIT_S) == 0
        assert watched.survivors() == set()


def test_the_addresses_of_the_router_are_left_for_those_who_ask(launch: Launch, tmp_path: Path) -> None:
    process = launch()
    lines = wait_all_up(process)
    config = json.loads((tmp_path / "run" / "cpu" / "router.json").read_text())
    assert read_addresses(tmp_path / "run" / "cpu") == (
        f"http://127.0.0.1:{config['port']}",
        f"http://127.0.0.1:{config['metrics_port']}",
    )
    # A stand-in for a router is ready at once, so the workers may be up before or after the greeting.
    if not any("Metrics: " in line for line in lines):
        lines += read_until(process, "Metrics: ")
    assert f"Metrics: http://127.0.0.1:{config['metrics_port']}/metrics" in "".join(lines)


def test_ctrl_c_stops_it_also_where_a_script_started_it_in_the_background(launch: Launch) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as shells do for background jobs; inherited
    try:
        process = launch()
    finally:
        signal.signal(signal.SIGINT, before)
    wait_all_up(process)
    process.send_signal(signal.SIGINT)
    assert process.wait(END_LIMIT_S) == 0


def test_a_launcher_under_nohup_survives_the_end_of_its_terminal(launch: Launch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = launch()
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_all_up(process)
    process.send_signal(signal.SIGHUP)
    process.terminate()
    assert process.wait(END_LIMIT_S) == 0
    assert process.stdout is not None
    assert "Killing what is left" not in process.stdout.read()  # said at a second signal: the first did not count


def test_processes_that_ignore_sigterm_are_killed_after_the_limit(launch: Launch) -> None:
    process = launch("router=stubborn", "prefill=stubborn,family")
    wait_all_up(process)
    with Watched(tree_below(process.pid)) as watched:
        process.terminate()
        assert process.wait(END_LIMIT_S) == 0
        assert watched.survivors() == set()


def test_a_second_signal_kills_at_once(launch: Launch) -> None:
    process = launch("router=stubborn", "prefill=stubborn", overrides=("timeouts.drain_s=3000",))
    wait_all_up(process)
    process.terminate()
    read_until(process, "Stopping router")
    process.terminate()
    assert process.wait(END_LIMIT_S) == 0


def test_nothing_survives_a_launcher_that_is_killed(launch: Launch) -> None:
    process = launch("router=stubborn", "prefill=stubborn,family", "decode=family")
    wait_all_up(process)
    with Watched(tree_below(process.pid)) as watched:
        process.kill()
        assert watched.survivors() == set()


def test_a_killed_supervisor_takes_its_session_along_and_is_replaced(launch: Launch) -> None:
    process = launch("prefill=engine")
    wait_all_up(process)
    ours = {pid for pid in tree_below(process.pid) if b"prefill-0.json" in command_line(pid)}
    supervisor = next(pid for pid in ours if b"child.py" in command_line(pid))
    below = tree_below(supervisor)
    assert len(below) == 2  # the child and its engine process
    with Watched(below) as watched:
        os.kill(supervisor, signal.SIGKILL)
        assert watched.survivors() == set()
    read_until(process, "prefill-0 ended (its supervisor was killed by SIGKILL)")
    read_until(process, "prefill-0 is up")


def test_a_process_that_ends_is_started_again(launch: Launch, tmp_path: Path) -> None:
    process = launch("decode=crash-once")
    lines = wait_all_up(process)
    assert any("decode-0 ended (exit code 4); starting it again in 0.1 s" in line for line in lines)
    assert log_of(tmp_path, "decode-0").count("fell over once") == 1


def test_a_crash_loop_stops_everything_with_1_and_shows_the_last_log_lines(launch: Launch) -> None:
    process = launch("prefill=crash-when-up", overrides=("restart.max_crashes=2",))
    output, _ = process.communicate(timeout=END_LIMIT_S)
    assert process.returncode == 1
    assert "prefill-0 ended (exit code 3), 3 times within 300 s: giving up" in output
    assert "    the engine fell over" in output.splitlines()


def test_a_process_that_never_comes_up_is_tried_twice_and_no_more(launch: Launch) -> None:
    process = launch("prefill=crash", overrides=("restart.max_crashes=50",))
    output, _ = process.communicate(timeout=END_LIMIT_S)
    assert process.returncode == 1
    assert output.count("prefill-0 ended (exit code 3); starting it again") == 1
    assert "prefill-0 ended (exit code 3) and has never been up: giving up" in output
    assert "    the engine fell over" in output.splitlines()


def test_a_model_that_is_no_checkpoint_folder_stops_before_anything_starts(launch: Launch, tmp_path: Path) -> None:
    process = launch(overrides=(f"model={tmp_path / 'nothing'}",))
    output, _ = process.communicate(timeout=END_LIMIT_S)
    assert process.returncode == 2
    assert "model: " in output
    assert "has no config.json" in output
    assert "Starting" not in output


def test_a_refused_configuration_stops_at_once_with_2_and_the_childs_message(launch: Launch) -> None:
    process = launch("decode=refuse-config")
    output, _ = process.communicate(timeout=END_LIMIT_S)
    assert process.returncode == 2
    assert "decode-0 refuses its configuration:" in output
    assert "    max_model_len: 9 is too short" in output.splitlines()
    assert "starting it again" not in output


@pytest.mark.parametrize("behaviour", ["refuse-peers", "refuse-when-up"])
def test_a_worker_that_its_peers_can_not_pair_with_stops_everything_at_once(launch: Launch, behaviour: str) -> None:
    process = launch(f"decode={behaviour}", overrides=("restart.max_crashes=50",))
    output, _ = process.communicate(timeout=END_LIMIT_S)
    assert process.returncode == 2
    reason = "max_model_len differs: 4096 on decode-0, 8192 on prefill-0"
    assert f"tandem: decode-0 can't serve as it is configured: {reason}" in output.splitlines()
    assert ("decode-0 is up" in output) == (behaviour == "refuse-when-up")
    assert "Stopping" in output
    assert "starting it again" not in output


def test_a_worker_that_refuses_without_a_word_stops_everything_too(launch: Launch) -> None:
    process = launch("prefill=refuse-silently", "decode=stubborn")
    output, _ = process.communicate(timeout=END_LIMIT_S)
    assert process.returncode == 2
    # Its last line stands for the reason it did not give.
    assert "prefill-0 can't serve as it is configured: handoff key is in the environment: True" in output
    assert "starting it again" not in output


def test_a_start_that_takes_too_long_fails_and_says_what_is_missing(launch: Launch) -> None:
    process = launch("router=never-ready", overrides=("timeouts.start_s=1.5",))
    output, _ = process.communicate(timeout=END_LIMIT_S)
    assert process.returncode == 1
    assert "Not ready within timeouts.start_s" in output


def test_a_taken_port_is_named_before_anything_starts(launch: Launch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        process = launch(overrides=(f"router.port={port}",))
        output, _ = process.communicate(timeout=END_LIMIT_S)
    assert process.returncode == 2
    assert f"router can't start: port {port} on 127.0.0.1 is already in use" in output
    assert not list((tmp_path / "run" / "cpu").glob("*.log"))


def test_a_second_launcher_of_the_same_deployment_is_refused(launch: Launch) -> None:
    wait_all_up(launch())
    second = launch()
    output, _ = second.communicate(timeout=END_LIMIT_S)
    assert second.returncode == 1
    assert "a deployment already runs in" in output

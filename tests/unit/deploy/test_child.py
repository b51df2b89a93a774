"""The supervisor ends the whole tree: with the child, on request, and when the launcher is gone."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from deploy.process import SUPERVISOR
from tests.unit.deploy.process_tree import END_LIMIT_S, Watched, read_until, tree_below

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
POLITE = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('up', flush=True)"
# A grandchild in a session of its own whose parent has ended: nothing but the sub-reaper can find it.
ESCAPED = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", '''
import subprocess, sys
process = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True, stdout=subprocess.PIPE)
process.stdout.readline()
'''])
"""


class Supervised:
    """One supervisor with the launcher's end of its pipe."""

    def __init__(self, program: str, stop_timeout_s: float) -> None:
        read_fd, self.write_fd = os.pipe()
        options = ["--parent-fd", str(read_fd), "--stop-timeout", str(stop_timeout_s), "--"]
        self.process = subprocess.Popen(
            [*SUPERVISOR, *options, sys.executable, "-S", "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(read_fd,),
            start_new_session=True,
        )
        os.close(read_fd)

    def close_pipe(self) -> None:
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1


class Supervise:
    def __init__(self) -> None:
        self.made: list[Supervised] = []

    def __call__(self, program: str, stop_timeout_s: float = END_LIMIT_S) -> Supervised:
        self.made.append(Supervised(program, stop_timeout_s))
        return self.made[-1]


@pytest.fixture
def supervise() -> Iterator[Supervise]:
    supervise = Supervise()
    yield supervise
    for supervised in supervise.made:
        supervised.close_pipe()
        supervised.process.wait(END_LIMIT_S)
        assert supervised.process.stdout is not None
        supervised.process.stdout.close()


@pytest.mark.parametrize(
    ("program", "exit_code"),
    [("", 0), ("raise SystemExit(2)", 2), ("import os; os.kill(os.getpid(), 9)", 137)],
)
def test_the_exit_code_is_the_childs(supervise: Supervise, program: str, exit_code: int) -> None:
    assert supervise(program).process.wait(END_LIMIT_S) == exit_code


def test_a_command_that_does_not_exist_gives_127() -> None:
    read_fd, write_fd = os.pipe()
    command = [*SUPERVISOR, "--parent-fd", str(read_fd), "--stop-timeout", "1", "--", "/no/such/program"]
    ended = subprocess.run(command, pass_fds=(read_fd,), capture_output=True, text=True, check=False)
    os.close(read_fd)
    os.close(write_fd)
    assert (ended.returncode, ended.stderr) == (127, "/no/such/program can't be started: No such file or directory\n")


def test_sigterm_reaches_the_child_which_may_end_in_its_own_way(supervise: Supervise) -> None:
    supervised = supervise(POLITE + "\nsignal.pause()")
    read_until(supervised.process, "up")
    supervised.process.terminate()
    assert supervised.process.wait(END_LIMIT_S) == 7


def test_a_child_that_ignores_sigterm_is_killed_after_the_limit(supervise: Supervise) -> None:
    supervised = supervise(STUBBORN, stop_timeout_s=0.2)
    read_until(supervised.process, "up")
    supervised.process.terminate()
    assert supervised.process.wait(END_LIMIT_S) == 137


def test_an_escaped_grandchild_ends_with_the_child(supervise: Supervise) -> None:
    supervised = supervise(ESCAPED + POLITE + "\nsignal.pause()")
    read_until(supervised.process, "up")
    below = tree_below(supervised.process.pid)
    assert len(below) == 2  # the child, and the escaped grandchild adopted by the supervisor
    with Watched(below) as watched:
        supervised.process.terminate()
        assert supervised.process.wait(END_LIMIT_S) == 7
        assert watched.survivors() == set()


def test_the_whole_tree_is_killed_when_the_launcher_is_gone(supervise: Supervise) -> None:
    supervised = supervise(ESCAPED + STUBBORN)
    read_until(supervised.process, "up")
    below = tree_below(supervised.process.pid)
    assert len(below) == 2  # the stubborn child, and the escaped grandchild adopted by the supervisor
    with Watched(below) as watched:
        supervised.close_pipe()
        assert watched.survivors() == set()


def test_the_child_dies_with_a_supervisor_that_is_killed(supervise: Supervise) -> None:
    supervised = supervise(STUBBORN)
    read_until(supervised.process, "up")
    with Watched(tree_below(supervised.process.pid)) as watched:
        os.kill(supervised.process.pid, signal.SIGKILL)
        assert watched.survivors() == set()

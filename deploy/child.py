"""Supervisor of one child process: guarantees that the child's whole tree ends with it, and with the launcher.

    launcher --(pipe: its write end closes when the launcher is gone)--> supervisor --> child --> engine processes

Run as a script with the standard library alone. The supervisor is a sub-reaper, so a process whose parent died becomes
its own and can't slip away; it passes SIGTERM on to the child, kills the tree when the stop limit has passed, when the
child has ended, or at once when the pipe says that the launcher is gone. Should the supervisor itself be killed, the
kernel kills the child (PR_SET_PDEATHSIG), and the launcher sweeps the session, which the tree shares.

Exit code: the child's, 128 + N when signal N ended it, 127 when it could not be started.
"""

import argparse
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Called with the process id and exit code (negative: signal) of each process that was reaped.
NoteExit = Callable[[int, int], None]

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
KILL_POLL_S = 0.01
# A process in uninterruptible sleep outlives SIGKILL for as long as its driver wants; don't wait for ever.
KILL_LIMIT_S = 10.0
EXIT_NOT_STARTED = 127
EXIT_SIGNAL_BASE = 128


def main(argv: list[str] | None = None) -> int:
    """Run the command after ``--`` under supervision; returns its exit code."""
    parser = argparse.ArgumentParser(description="run one command and end its whole process tree with it")
    parser.add_argument("--parent-fd", type=int, required=True, help="read end of the launcher's pipe")
    parser.add_argument("--stop-timeout", type=float, required=True, help="seconds from SIGTERM to SIGKILL")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    os.set_inheritable(options.parent_fd, False)
    supervisor = Supervisor(options.parent_fd, options.stop_timeout)
    return supervisor.run(options.command)


class Supervisor:
    """Watches one child, the launcher's pipe and the signals, all in one loop."""

    def __init__(self, parent_fd: int, stop_timeout_s: float) -> None:
        self._parent_fd = parent_fd
        self._stop_timeout_s = stop_timeout_s
        self._child_pid = 0
        self._exit_code: int | None = None
        self._stop_asked = False
        self._kill_at: float | None = None

    def run(self, command: list[str]) -> int:
        """Start ``command`` and stay until it has ended and nothing of its tree is left."""
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        wakeup_fd = self._install_signal_handlers()
        self._child_pid = _spawn(command)
        while self._exit_code is None:
            if self._wait_for_event(wakeup_fd):
                break
            self._reap()
            self._forward_stop()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                break
        _kill_descendants(self._note_exit)
        return EXIT_SIGNAL_BASE + signal.SIGKILL if self._exit_code is None else self._exit_code

    def _install_signal_handlers(self) -> int:
        wakeup_read, wakeup_write = os.pipe()
        for fd in (wakeup_read, wakeup_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for stop_signal in STOP_SIGNALS:
            signal.signal(stop_signal, self._ask_stop)
        return wakeup_read

    def _ask_stop(self, *_: object) -> None:
        self._stop_asked = True

    def _wait_for_event(self, wakeup_fd: int) -> bool:
        """Sleep until something happens; true when the launcher is gone."""
        timeout_s = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
        readable, _, _ = select.select([wakeup_fd, self._parent_fd], [], [], timeout_s)
        if wakeup_fd in readable:
            os.read(wakeup_fd, 4096)
        # The launcher never writes: readable means end of file.
        return self._parent_fd in readable

    def _forward_stop(self) -> None:
        if self._stop_asked and self._kill_at is None and self._exit_code is None:
            self._kill_at = time.monotonic() + self._stop_timeout_s
            os.kill(self._child_pid, signal.SIGTERM)

    def _reap(self) -> None:
        _reap_ended(self._note_exit)

    def _note_exit(self, pid: int, exit_code: int) -> None:
        if pid == self._child_pid:
            self._exit_code = exit_code if exit_code >= 0 else EXIT_SIGNAL_BASE - exit_code


def _spawn(command: list[str]) -> int:
    """Fork and execute ``command`` in a process group of its own; it dies when this process does."""
    supervisor_pid = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != supervisor_pid:  # it died before the line above took effect
                os._exit(EXIT_NOT_STARTED)
            for number in (*STOP_SIGNALS, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"{command[0]} can't be started: {error.strerror}\n".encode())
        finally:
            os._exit(EXIT_NOT_STARTED)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    return pid


def _kill_descendants(note_exit: NoteExit) -> None:
    """SIGKILL everything below this process until nothing is left, at most ``KILL_LIMIT_S`` seconds."""
    give_up_at = time.monotonic() + KILL_LIMIT_S
    while descendants := _descendants(os.getpid()):
        for pid in descendants:
            _kill(pid)
        _reap_ended(note_exit)
        if time.monotonic() > give_up_at:
            sys.stderr.write(f"processes {descendants} did not end on SIGKILL\n")
            return
        time.sleep(KILL_POLL_S)


def _reap_ended(note_exit: NoteExit) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        note_exit(pid, os.waitstatus_to_exitcode(status))


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # ended meanwhile: what was wanted


def _descendants(root_pid: int) -> list[int]:
    """Process ids of the whole tree below ``root_pid``, zombies included, in no promised order."""
    children: dict[int, list[int]] = {}
    for pid, parent_pid, _ in read_process_table():
        children.setdefault(parent_pid, []).append(pid)
    found, queue = [], [root_pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def read_process_table() -> list[tuple[int, int, int]]:
    """(pid, parent pid, session id) of every process that this one may see."""
    table = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_bytes()
            except OSError:
                continue  # ended between the listing and the read
            # The command name is in parentheses and may hold anything: count fields from behind it.
            fields = stat[stat.rindex(b")") + 2 :].split()
            table.append((int(entry.name), int(fields[1]), int(fields[3])))
    return table


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


if __name__ == "__main__":
    sys.exit(main())

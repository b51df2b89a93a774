"""Watching a launcher and its processes from outside, and waiting without sleeping: pidfds become readable at exit."""

import os
import select
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.child import read_process_table

END_LIMIT_S = 20.0
# The fixture `launch`: behaviours, overrides and environment to the running launcher.
Launch = Callable[..., "subprocess.Popen[str]"]


def tree_below(root_pid: int) -> set[int]:
    """Every process below ``root_pid`` now, whatever its session, as long as its parents live."""
    table, found, queue = read_process_table(), set(), [root_pid]
    while queue:
        parent = queue.pop()
        below = {pid for pid, parent_pid, _ in table if parent_pid == parent}
        found |= below
        queue += below
    return found


class Watched:
    """Holds on to processes by file descriptor, so that a reused process id can't be mistaken for one of them."""

    def __init__(self, pids: Collection[int]) -> None:
        self._fds = {os.pidfd_open(pid): pid for pid in pids}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fd in self._fds:
            os.close(fd)

    def survivors(self) -> set[int]:
        """The processes that are still there after ``END_LIMIT_S``; empty as soon as all have ended."""
        waiting = dict(self._fds)
        while waiting:
            ended, _, _ = select.select(list(waiting), [], [], END_LIMIT_S)
            if not ended:
                break
            for fd in ended:
                del waiting[fd]
        return set(waiting.values())


def read_until(process: "subprocess.Popen[str]", text: str) -> list[str]:
    """Read lines of the process's output up to one that holds ``text``; fails when the output ends before."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if text in line:
            return lines
    raise AssertionError(f"{text!r} never came; output:\n" + "\n".join(lines))


def wait_all_up(process: "subprocess.Popen[str]") -> list[str]:
    """Lines up to the one that reports the last of the three processes, whatever their order."""
    lines: list[str] = []
    while sum(" is up (" in line for line in lines) < 3:
        lines += read_until(process, " is up (")
    return lines


def command_line(pid: int) -> bytes:
    """Its arguments, each ended by a zero byte; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""

"""One process of the deployment, run under its supervisor (``child``) with its output in a log file."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy import child

# Isolated and without site packages: the supervisor needs the standard library alone and starts in 20 ms.
SUPERVISOR = (sys.executable, "-I", "-S", child.__file__)
TAIL_BYTES = 65_536
# Beyond the supervisor's own limits, before the launcher kills the supervisor itself.
STOP_MARGIN_S = 5.0


class ManagedProcess:
    """Starts, awaits and stops one process, again and again. Used from one event loop; not thread-safe."""

    def __init__(
        self, *, name: str, command: Sequence[str], env: Mapping[str, str], log_path: Path, stop_timeout_s: float
    ) -> None:
        """``env`` is the whole environment; ``stop_timeout_s`` runs from SIGTERM to the kill of the tree."""
        self.name = name
        self.log_path = log_path
        self._command = tuple(command)
        self._env = dict(env)
        self._stop_timeout_s = stop_timeout_s
        self._popen: subprocess.Popen[bytes] | None = None
        self._start_offset = 0
        self._mirrored_bytes = 0

    @property
    def is_running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def start(self, liveness_fd: int) -> None:
        """Start it; its tree ends when the other end of ``liveness_fd`` closes.

        Synchronous, so that a cancelled task can't leave a process that nobody knows of.
        """
        options = ["--parent-fd", str(liveness_fd), "--stop-timeout", str(self._stop_timeout_s), "--"]
        with self.log_path.open("ab") as log:
            self._start_offset = log.tell()
            self._popen = subprocess.Popen(
                [*SUPERVISOR, *options, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                pass_fds=(liveness_fd,),
                start_new_session=True,
            )

    async def wait(self) -> int:
        """Wait for the end of the process and of all below it; returns the exit code as ``child`` defines it."""
        popen = self._popen
        if popen is None:
            raise RuntimeError(f"{self.name} was never started")
        if popen.returncode is None:
            await _wait_for_exit(popen.pid)
        exit_code = popen.wait()
        if exit_code < 0:
            # The supervisor itself was killed. Its session id is its own process id, still taken by what is left.
            kill_session(popen.pid)
        return exit_code

    async def stop(self) -> None:
        """Ask it to end, and see to it that it does; returns when nothing of it is left."""
        if self._popen is None or not self.is_running:
            return
        self._popen.terminate()
        try:
            async with asyncio.timeout(self._stop_timeout_s + child.KILL_LIMIT_S + STOP_MARGIN_S):
                await self.wait()
        except TimeoutError:
            self._popen.kill()
            await self.wait()

    def log_tail(self, num_lines: int) -> list[str]:
        """The last lines that this start of the process wrote."""
        size = self.log_path.stat().st_size
        content = self._read_log(max(self._start_offset, size - TAIL_BYTES))
        return content.decode("utf-8", "replace").splitlines()[-num_lines:]

    def take_new_log_lines(self) -> list[str]:
        """Whole lines written since the last call."""
        whole, newline, _ = self._read_log(self._mirrored_bytes).rpartition(b"\n")
        self._mirrored_bytes += len(whole) + len(newline)
        return whole.decode("utf-8", "replace").splitlines() if newline else []

    def _read_log(self, start: int) -> bytes:
        with self.log_path.open("rb") as log:
            log.seek(start)
            return log.read()


async def _wait_for_exit(pid: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    pidfd = os.pidfd_open(pid)  # readable once the process has ended
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def kill_session(session_id: int) -> None:
    """SIGKILL every process of a session."""
    for pid, _, session in child.read_process_table():
        if session == session_id:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # ended meanwhile: what was wanted

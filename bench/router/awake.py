"""Keeps cores from halting while latency is measured: the time that a halted virtual core takes to come back is the
machine's, ten times over what a router does in it, and differs from host to host."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# Of SCHED_IDLE, so that whatever else has work takes the core from it at once; ends with the process that started it.
_SPIN = """
import os, sys
core, parent = map(int, sys.argv[1:])
os.sched_setaffinity(0, {core})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
print("spinning", flush=True)
while os.getppid() == parent:
    for _ in range(10_000):
        pass
"""


@contextmanager
def kept_awake(cores: Sequence[int], parent_pid: int) -> Iterator[None]:
    """Inside, each of ``cores`` always has something to do, of the lowest priority there is.

    Args:
        parent_pid: this process's id; the spinners end when it is gone.

    Raises:
        RuntimeError: a spinner did not start.
    """
    spinners: list[subprocess.Popen[bytes]] = []
    try:
        for core in cores:
            command = [sys.executable, "-c", _SPIN, str(core), str(parent_pid)]
            spinners.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        for spinner in spinners:
            assert spinner.stdout is not None
            if not spinner.stdout.readline():
                raise RuntimeError("a core could not be kept awake: its idle-priority loop did not start")
        yield
    finally:
        for spinner in spinners:
            spinner.terminate()
            spinner.wait()
            if spinner.stdout is not None:
                spinner.stdout.close()

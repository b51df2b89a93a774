"""CPU time and memory of processes, from the kernel's own books; which cores processes may use."""

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

# clock_getcpuclockid(3): the clock of a process counts what the scheduler gave to all its threads, the ended ones too.
_CPUCLOCK_SCHED = 2


def cpu_s(pid: int) -> float:
    """Seconds of CPU time, user and system, of all threads of a process. Raises: OSError: no such process."""
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def schedstat_cpu_s(pid: int) -> float:
    """The same from ``/proc/<pid>/task/*/schedstat``: of the threads that live now. Raises: OSError."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def with_descendants(pid: int) -> list[int]:
    """The process and all that it started, as far as they live."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in task.read_text().split()]
        except OSError:
            continue  # a thread that has just ended
        for child in children:
            found += with_descendants(child)
    return found


def peak_rss_mb(pid: int) -> float:
    """The most physical memory that a process has held, in MB of 10^6 bytes. Raises: OSError, ValueError."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"no VmHWM in the status of process {pid}")


def pick_cores(allowed: Iterable[int]) -> tuple[int, int]:
    """Core for the router and core for mocks and load: the last and the first but one of those allowed.

    Raises:
        ValueError: there is one only, so that neither figure would be the router's own.
    """
    cores: Sequence[int] = sorted(allowed)
    if len(cores) < 2:
        raise ValueError("two cores are needed, one of them for the router alone")
    # Core 0 takes most interrupts.
    return cores[-1], cores[-2]


def pin(core: int) -> None:
    """Keep this process, and those that it starts, on one core."""
    os.sched_setaffinity(0, {core})

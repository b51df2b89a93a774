"""CPU time and memory come from the kernel and are those of the process that was asked about."""

import os
import subprocess
import sys

import pytest

from bench.router.accounting import cpu_s, peak_rss_mb, pick_cores, schedstat_cpu_s, with_descendants

SPEND = "import time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True)\ninput()\n"


def test_both_books_of_another_process_say_what_it_has_spent() -> None:
    with subprocess.Popen([sys.executable, "-c", SPEND], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        spent_s, by_tasks_s = cpu_s(process.pid), schedstat_cpu_s(process.pid)
        assert process.pid in with_descendants(os.getpid())
        process.communicate(b"\n")
    assert 0.2 <= spent_s < 2.0
    assert by_tasks_s == pytest.approx(spent_s, abs=0.05)


def test_memory_is_in_megabytes() -> None:
    assert 5 < peak_rss_mb(os.getpid()) < 100_000


def test_the_router_has_a_core_of_its_own() -> None:
    assert pick_cores({0, 1}) == (1, 0)
    assert pick_cores({5, 2, 7}) == (7, 5)
    with pytest.raises(ValueError, match="two cores"):
        pick_cores({3})

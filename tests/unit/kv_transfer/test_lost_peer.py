"""A source that is killed at any moment fails the pulls from it within their time, and nothing else."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kv_transfer.agent import KVAgent, Read
from kv_transfer.step import PeerRows, StepMetadata
from tests.unit.kv_transfer.factories import wait_for
from tests.unit.kv_transfer.ranks import Rank, hold, orders, pull, taken

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Source:
    """One prefill rank in a process of its own."""

    process_id: int
    rows: PeerRows

    @classmethod
    def of(cls, path: Path) -> "Source":
        name, _, process_id = path.name.partition(".")
        return cls(int(process_id), PeerRows(name, [path.read_bytes()]))

    def kill(self) -> None:
        """Kill it and wait until it holds no memory any more."""
        with suppress(ProcessLookupError):
            os.kill(self.process_id, signal.SIGKILL)
        wait_for(self.is_dead)

    def is_dead(self) -> bool:
        try:
            stat = Path(f"/proc/{self.process_id}/stat").read_text(encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):
            return True
        return stat.rpartition(")")[2].split()[0] == "Z"


class KillingAgent(KVAgent):
    """Kills a source just before what a test names is posted."""

    before = ""
    victim: Source

    def read(self, *args: Any, **kwargs: Any) -> Read:
        if self.before == "rows":
            self.victim.kill()
        return super().read(*args, **kwargs)

    def read_word(self, *args: Any, **kwargs: Any) -> Read:
        if self.before == "word":
            self.victim.kill()
        return super().read_word(*args, **kwargs)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Source]]:
    folder, names = tmp_path_factory.mktemp("hellos"), [f"lost-{number}" for number in range(4)]
    command = [sys.executable, "-m", "tests.unit.kv_transfer.source_processes", str(folder), *names]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT, start_new_session=True) as parent:
        try:
            wait_for(lambda: len(list(folder.glob("lost-*"))) == len(names), timeout_s=60)
            yield [Source.of(path) for path in sorted(folder.glob("lost-*"))]
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


@pytest.fixture
def decode() -> Iterator[Rank]:
    rank = Rank("lost-decode", wrap=KillingAgent, read_timeout_s=TIMEOUT_S)
    rank.mover.start()
    yield rank
    rank.mover.stop()


def fails_in_time(decode: Rank) -> bool:
    """Whether the next pull that ends has failed, and within its time."""
    began = time.monotonic()
    moved = taken(decode)
    return moved.failed == {"req"} and time.monotonic() - began < TIMEOUT_S + 8


@pytest.mark.parametrize(("number", "before"), [(0, "rows"), (1, "word")])
def test_a_source_killed_before_a_read_of_it_fails_the_pull_in_time(
    sources: list[Source], decode: Rank, number: int, before: str
) -> None:
    source = sources[number]
    decode.mover.give(StepMetadata(peers=[source.rows]))
    assert isinstance(decode.agent, KillingAgent)
    decode.agent.before, decode.agent.victim = before, source
    decode.mover.give(StepMetadata(pulls=[pull(source.rows.engine_id, [4], [11])]))
    assert fails_in_time(decode)
    healthy = Rank(f"healthy-{number}")
    healthy.fill()
    healthy.mover.start()
    healthy.mover.give(hold())
    decode.agent.before = ""
    decode.mover.give(StepMetadata(fenced=[source.rows.engine_id]))
    decode.mover.give(orders("healthy", healthy, pulls=[pull("healthy", [4], [11])]))
    moved = taken(decode)
    assert (moved.received, moved.failed) == ({"req"}, set())
    assert np.array_equal(decode.rows[4], healthy.rows[11])
    healthy.mover.stop()


def test_a_source_killed_between_two_pulls_fails_the_second_in_time(sources: list[Source], decode: Rank) -> None:
    source = sources[2]
    decode.mover.give(StepMetadata(peers=[source.rows], pulls=[pull(source.rows.engine_id, [4], [11])]))
    assert taken(decode).failed == set()
    assert (decode.rows[4] == 7).all()
    source.kill()
    decode.mover.give(StepMetadata(pulls=[pull(source.rows.engine_id, [5], [11])]))
    assert fails_in_time(decode)


def test_a_source_killed_before_it_was_met_fails_the_pull_in_time(sources: list[Source], decode: Rank) -> None:
    source = sources[3]
    source.kill()
    decode.mover.give(StepMetadata(peers=[source.rows], pulls=[pull(source.rows.engine_id, [4], [11])]))
    assert fails_in_time(decode)

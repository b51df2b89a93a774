"""A pull ends as received only when its rows have come and its lease was still live after that."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kv_transfer.agent import KVAgent, PostFailed, Read, ReadState, RowReader
from kv_transfer.notes import Note
from tests.unit.kv_transfer.factories import HANDOFF_ID, Clock, log_lines
from tests.unit.kv_transfer.ranks import NUM_SCRATCH, NUM_WORDS, SERIAL, SLOT, Rank, pull
from wire.errors import TransferFailed

ENGINE = "prefill-0-life1"
TIMEOUT_S = 5.0


class OddAgent(KVAgent):
    """Does what a test says at the places where something can happen."""

    is_stuck = False
    num_cut = 0
    fails_rows = fails_words = loses_words = fails_in_part = False
    ends: Any = None  # a rank whose lease ends when its rows have arrived

    def state(self, read: Read) -> ReadState:
        return ReadState.PENDING if self.is_stuck else super().state(read)

    def disconnect(self, reader: RowReader) -> None:
        self.num_cut += 1
        super().disconnect(reader)

    def read(self, *args: Any, **kwargs: Any) -> Read:
        if self.fails_rows:
            raise RuntimeError("NIXL says no")
        read = super().read(*args, **kwargs)
        if self.fails_in_part:
            raise PostFailed(read, RuntimeError("out of memory"))
        return read

    def read_word(self, reader: RowReader, word: int, scratch: int, note: bytes) -> Read:
        if self.fails_words:
            raise RuntimeError("NIXL says no")
        if self.loses_words:
            return super().read(reader, [0], [0])
        if self.ends is not None:
            self.ends.fence.end(SLOT, SERIAL)
        return super().read_word(reader, word, scratch, note)


class Scene:
    def __init__(self) -> None:
        self.clock = Clock()
        self.prefill = Rank("pulls-prefill", num_blocks=12)
        self.decode = Rank("pulls-decode", num_blocks=9, wrap=OddAgent, read_timeout_s=TIMEOUT_S, clock=self.clock)
        self.prefill.fill()
        self.decode.meet(ENGINE, self.prefill)
        agent = self.decode.agent
        assert isinstance(agent, OddAgent)
        self.agent = agent

    def run(self, *pulls: Any) -> tuple[set[str], set[str]]:
        for each in pulls:
            self.decode.pulls.begin(each)
        return self.decode.move(self.prefill)

    def drain(self) -> None:
        """Until no given-up read is left; both sides move."""
        deadline = time.monotonic() + 10
        while len(self.decode.pulls.draining) and time.monotonic() < deadline:
            self.prefill.agent.notes()
            self.decode.pulls.move_on(self.decode.stats)

    def works(self, **changes: Any) -> bool:
        """Whether a good handoff crosses now."""
        self.decode.rows[:] = 0
        is_failed = bool(self.run(pull(ENGINE, [4, 8], [11, 2], **changes))[1])
        return not is_failed and np.array_equal(self.decode.rows[[4, 8]], self.prefill.rows[[11, 2]])


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.decode.close()
    made.prefill.close()


def test_rows_arrive_and_are_received_while_the_lease_lives(scene: Scene) -> None:
    scene.prefill.fence.words[SLOT] = SERIAL - 1  # of an earlier lease in that slot
    assert scene.run(pull(ENGINE, [4, 8, 1], [11, 2, 7])) == ({"req"}, set())
    assert np.array_equal(scene.decode.rows[[4, 8, 1]], scene.prefill.rows[[11, 2, 7]])
    assert not scene.decode.rows[[0, 2, 3, 5, 6, 7]].any()
    assert len(scene.decode.pulls) == 0
    data = scene.decode.stats.data
    num_bytes = 3 * scene.decode.layout.row_bytes
    assert (data["reads"], data["blocks"], data["posted_descriptors"], data["bytes"]) == (1, 3, 3, num_bytes)
    assert data["descriptors_per_block"] == [1.0]
    assert "failures" not in data


def test_prefill_hears_when_the_reading_begins_and_when_it_is_over(scene: Scene) -> None:
    scene.run(pull(ENGINE, [4], [11]))
    notes = scene.prefill.hears(2, scene.decode)
    begun, done = (Note(HANDOFF_ID, "req", 0, 1, is_done) for is_done in (False, True))
    assert sorted(notes, key=lambda note: note.is_done) == [begun, done]


@pytest.mark.parametrize("word", [SERIAL, SERIAL + 1, 1 << 63])
def test_rows_of_a_lease_that_is_over_are_not_received(scene: Scene, word: int) -> None:
    scene.prefill.fence.words[SLOT] = word
    assert scene.run(pull(ENGINE, [4], [11])) == ({"req"}, {"req"})
    assert (scene.decode.stats.data["failures"], scene.decode.stats.data["expired_reads"]) == (1, 1)
    assert "reads" not in scene.decode.stats.data
    assert "bytes" not in scene.decode.stats.data


def test_a_lease_that_ends_after_the_rows_came_and_before_the_word_is_over(scene: Scene) -> None:
    scene.agent.ends = scene.prefill
    assert scene.run(pull(ENGINE, [4], [11])) == ({"req"}, {"req"})
    assert scene.decode.stats.data["expired_reads"] == 1


def test_a_scratch_word_of_an_earlier_read_says_nothing_of_a_later_one(scene: Scene) -> None:
    for number in range(3 * NUM_SCRATCH):
        scene.prefill.fence.words[SLOT] = number % 2 * SERIAL
        assert scene.works() == (number % 2 == 0)


def test_a_word_that_does_not_arrive_is_not_a_live_one(scene: Scene) -> None:
    assert scene.works()
    scene.agent.loses_words = True
    assert scene.run(pull(ENGINE, [4], [11])) == ({"req"}, {"req"})


def test_many_pulls_are_in_flight_at_once(scene: Scene) -> None:
    for number in range(NUM_SCRATCH):
        scene.decode.pulls.begin(pull(ENGINE, [number], [number + 5], request_id=f"req-{number}"))
    assert len(scene.decode.pulls) == NUM_SCRATCH
    ended: set[str] = set()
    while len(ended) < NUM_SCRATCH:
        done, failed = scene.decode.move(scene.prefill)
        assert not failed
        ended |= done
    assert np.array_equal(scene.decode.rows[:NUM_SCRATCH], scene.prefill.rows[5 : 5 + NUM_SCRATCH])


def test_a_refused_handoff_fails_without_a_read(scene: Scene) -> None:
    assert scene.run(pull(ENGINE, [4], [11], refusal="prompt: made for another")) == ({"req"}, {"req"})
    assert not scene.decode.rows.any()
    scene.prefill.listen()
    assert scene.prefill.heard == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"theirs": [0, 12]}, "it names block 12 of 12"),
        ({"lease_slot": NUM_WORDS}, f"it names fence word {NUM_WORDS} of {NUM_WORDS}"),
        ({"engine_id": "prefill-0-life2"}, "engine prefill-0-life2 is not connected"),
    ],
)
def test_a_handoff_of_what_is_not_there_fails_alone(scene: Scene, changes: dict[str, Any], reason: str) -> None:
    wrong = pull(**({"engine_id": ENGINE, "mine": [4, 5], "theirs": [1, 2], "request_id": "wrong"} | changes))
    with log_lines() as lines:
        ended, failed = scene.run(wrong, pull(ENGINE, [7], [3]))
        if len(ended) == 1:
            more = scene.decode.move(scene.prefill)
            ended, failed = ended | more[0], failed | more[1]
    assert (ended, failed) == ({"wrong", "req"}, {"wrong"})
    assert any(reason in line for line in lines)
    assert not scene.decode.rows[[4, 5]].any()


def test_a_read_that_can_t_be_posted_fails_its_own_request(scene: Scene) -> None:
    scene.agent.fails_rows = True
    assert scene.run(pull(ENGINE, [4], [11])) == ({"req"}, {"req"})
    scene.agent.fails_rows = False
    assert scene.works()


def test_words_that_can_t_be_posted_cost_nothing_for_good(scene: Scene) -> None:
    scene.agent.fails_words = True
    for _ in range(NUM_SCRATCH + 1):
        assert scene.run(pull(ENGINE, [4], [11])) == ({"req"}, {"req"})
    scene.agent.fails_words = False
    assert scene.works()


def test_a_read_that_takes_too_long_fails_and_drains_and_the_peer_is_read_again_afterwards(scene: Scene) -> None:
    scene.agent.is_stuck = True
    scene.decode.pulls.begin(pull(ENGINE, [4], [11]))
    assert scene.decode.pulls.move_on(scene.decode.stats) == (set(), set())
    scene.clock.now += TIMEOUT_S
    assert scene.decode.pulls.move_on(scene.decode.stats) == (set(), set())
    scene.clock.now += 0.1
    assert scene.decode.pulls.move_on(scene.decode.stats) == ({"req"}, {"req"})
    assert scene.decode.pulls.draining.take_news() == (Counter(req=1), Counter())
    assert scene.run(pull(ENGINE, [5], [11], request_id="second")) == ({"second"}, {"second"}), "it does not move bytes"
    scene.agent.is_stuck = False
    scene.drain()
    assert scene.decode.pulls.draining.take_news() == (Counter(), Counter(req=1))
    assert scene.works()
    assert scene.agent.num_cut == 0, "which would end nothing"


def test_a_pull_that_has_failed_elsewhere_does_not_wait_for_a_rank_that_hangs(scene: Scene) -> None:
    scene.agent.is_stuck = True
    scene.decode.pulls.begin(pull(ENGINE, [4], [11]))
    scene.decode.pulls.move_on(scene.decode.stats)
    scene.decode.pulls._in_flight[0].error = TransferFailed("another rank's rows")
    assert scene.decode.pulls.move_on(scene.decode.stats) == (set(), set())
    scene.clock.now += TIMEOUT_S + 0.1
    assert scene.decode.pulls.move_on(scene.decode.stats) == ({"req"}, {"req"})
    assert scene.decode.pulls.draining.take_news() == (Counter(req=1), Counter())


def test_a_read_that_is_posted_in_part_pins_its_blocks(scene: Scene) -> None:
    scene.agent.fails_in_part = True
    assert scene.run(pull(ENGINE, [4], [11])) == ({"req"}, {"req"})
    assert scene.decode.pulls.draining.take_news() == (Counter(req=1), Counter())
    scene.agent.fails_in_part = False
    assert scene.works()
    scene.decode.pulls.draining.forget(ENGINE)
    assert scene.decode.pulls.draining.take_news() == (Counter(), Counter(req=1))


def test_a_log_of_ucx_that_can_t_be_read_fails_nothing_where_any_link_will_do(scene: Scene) -> None:
    def look(*args: object) -> None:
        raise OSError(24, "too many open files")

    scene.decode.pulls._watch.look = look  # type: ignore[assignment, method-assign]
    assert scene.works()
    scene.decode.pulls._watch.must_know = True
    assert scene.run(pull(ENGINE, [5], [11])) == ({"req"}, {"req"})


def test_a_read_of_an_engine_that_is_gone_fails_and_drains(scene: Scene) -> None:
    scene.agent.is_stuck = True
    scene.decode.pulls.begin(pull(ENGINE, [4], [11]))
    scene.decode.pulls.move_on(scene.decode.stats)
    scene.decode.pulls.give_up_on("prefill-9-other", "it is gone")
    assert scene.decode.pulls.move_on(scene.decode.stats) == (set(), set())
    scene.decode.pulls.give_up_on(ENGINE, "it is gone")
    assert scene.decode.pulls.move_on(scene.decode.stats) == ({"req"}, {"req"})
    assert scene.decode.pulls.is_busy(ENGINE)
    scene.agent.is_stuck = False
    scene.drain()
    assert not scene.decode.pulls.is_busy(ENGINE)
    scene.decode.peers.forget(ENGINE)
    assert not scene.works()
    scene.decode.meet(ENGINE, scene.prefill)
    assert scene.works()


def test_a_peer_whose_rows_don_t_fit_fails_its_own_handoffs(scene: Scene) -> None:
    scene.decode.peers.meet("prefill-9-odd", [b"no hello"])
    assert scene.run(pull("prefill-9-odd", [4], [11])) == ({"req"}, {"req"})
    assert scene.works()

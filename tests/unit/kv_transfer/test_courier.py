"""Leases are renewed while somebody waits for them, blocks let go at once, and no engine waits for another."""

import json
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from kv_transfer import side_channel
from kv_transfer.courier import MAX_RENEWALS_PER_MESSAGE, RELEASE_ATTEMPTS, Courier
from tests.unit.kv_transfer.factories import HOST, PORT, Clock, handoff, log_lines, wait_for
from wire.errors import TransferFailed

RENEW, RELEASE = b"renew", b"release"
ADDRESS, OTHER = (HOST, PORT), ("10.0.0.8", PORT)


class Post:
    """Takes down what was sent; fails or hangs where a test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[tuple[str, int], bytes, object]] = []
        self.failures: Counter[tuple[str, int]] = Counter()
        self.hangs: set[tuple[str, int]] = set()
        self.may_go = threading.Event()
        self.answer = b"[]"

    def send(self, host: str, port: int, verb: bytes, payload: bytes) -> bytes:
        self.sent.append(((host, port), verb, json.loads(payload)))
        if (host, port) in self.hangs:
            self.may_go.wait(30)
        if self.failures[host, port] > 0:
            self.failures[host, port] -= 1
            raise TransferFailed("no answer")
        return self.answer

    def renewals(self, address: tuple[str, int] = ADDRESS) -> list[object]:
        return [payload for where, verb, payload in list(self.sent) if verb == RENEW and where == address]

    def releases(self, address: tuple[str, int] = ADDRESS) -> list[object]:
        return [payload for where, verb, payload in list(self.sent) if verb == RELEASE and where == address]


@pytest.fixture
def post() -> Iterator[Post]:
    made = Post()
    yield made
    made.may_go.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def courier(post: Post, clock: Clock) -> Iterator[Courier]:
    made = Courier(post.send, renew_verb=RENEW, release_verb=RELEASE, clock=clock)
    yield made
    post.may_go.set()
    made.stop()


def look_again(courier: Courier) -> None:
    """The courier's thread sleeps on the real clock; anything that is wanted anew wakes it."""
    courier._changed.set()


def looked(courier: Courier) -> None:
    """Wait until the thread has seen all that was given to it, and sleeps."""
    look_again(courier)
    wait_for(lambda: not courier._changed.is_set())


def test_a_lease_is_renewed_every_sixth_of_its_time_until_it_is_done(
    courier: Courier, post: Post, clock: Clock
) -> None:
    wanted = handoff(lease_s=30.0)
    courier.keep("req", wanted)
    looked(courier)
    for number in range(1, 4):
        clock.now += 4.99
        looked(courier)
        assert len(post.renewals()) == number - 1
        clock.now += 0.01
        look_again(courier)
        wait_for(lambda number=number: len(post.renewals()) == number)  # type: ignore[misc]
        looked(courier)
    assert post.renewals() == [[wanted.handoff_id]] * 3
    courier.done("req")
    clock.now += 300
    looked(courier)
    looked(courier)
    assert len(post.renewals()) == 3


def test_one_message_an_engine_carries_all_its_leases(courier: Courier, post: Post, clock: Clock) -> None:
    ids = [digit * 32 for digit in "abc"]
    courier.keep("r1", handoff(handoff_id=ids[0]))
    courier.keep("r2", handoff(handoff_id=ids[1]))
    courier.keep("r3", handoff(handoff_id=ids[2], remote_host=OTHER[0]))
    looked(courier)
    clock.now += 5
    look_again(courier)
    wait_for(lambda: len(post.sent) == 2)
    assert post.renewals() == [[ids[0], ids[1]]]
    assert post.renewals(OTHER) == [[ids[2]]]


def test_more_leases_than_a_message_holds_go_in_several(
    courier: Courier, post: Post, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kv_transfer.courier.MAX_RENEWALS_PER_MESSAGE", 2)
    ids = [digit * 32 for digit in "abcde"]
    for handoff_id in ids:
        courier.keep(f"r-{handoff_id}", handoff(handoff_id=handoff_id))
    post.failures[ADDRESS] = 1
    looked(courier)
    clock.now += 5
    look_again(courier)
    wait_for(lambda: len(post.sent) == 3)
    assert post.renewals() == [ids[:2], ids[2:4], ids[4:]]


def test_the_side_channel_takes_the_longest_message_of_renewals() -> None:
    longest = json.dumps(["a" * 32] * MAX_RENEWALS_PER_MESSAGE)
    assert len(longest) < 0.9 * side_channel._MAX_FRAME_BYTES


def test_the_shortest_lease_sets_the_pace(courier: Courier, post: Post, clock: Clock) -> None:
    courier.keep("long", handoff(lease_s=600.0))
    courier.keep("short", handoff(handoff_id="c" * 32, lease_s=6.0))
    looked(courier)
    clock.now += 1
    look_again(courier)
    wait_for(post.renewals)


def test_a_lease_that_comes_after_a_quiet_time_is_renewed_too(courier: Courier, post: Post, clock: Clock) -> None:
    courier.keep("r1", handoff())
    courier.done("r1")
    looked(courier)
    clock.now += 3600
    courier.keep("r2", handoff(handoff_id="c" * 32))
    clock.now += 5
    look_again(courier)
    wait_for(post.renewals)
    assert post.renewals()[-1] == ["c" * 32]


def test_a_lease_is_renewed_by_the_real_clock_without_anybody_waking_the_courier(post: Post) -> None:
    courier = Courier(post.send, renew_verb=RENEW, release_verb=RELEASE)
    courier.keep("req", handoff(lease_s=0.12))
    wait_for(lambda: len(post.renewals()) >= 3)
    courier.stop()


def test_a_renewal_that_fails_is_tried_again_with_the_next_one(courier: Courier, post: Post, clock: Clock) -> None:
    post.failures[ADDRESS] = 1
    courier.keep("req", handoff())
    looked(courier)
    for number in (1, 2):
        clock.now += 5
        look_again(courier)
        wait_for(lambda number=number: len(post.renewals()) == number)  # type: ignore[misc]
        looked(courier)


def test_an_answer_that_can_t_be_read_keeps_no_later_message_back(courier: Courier, post: Post, clock: Clock) -> None:
    post.answer = b"no JSON"
    courier.keep("req", handoff())
    looked(courier)
    for number in (1, 2):
        clock.now += 5
        look_again(courier)
        wait_for(lambda number=number: len(post.renewals()) == number, timeout_s=5)  # type: ignore[misc]
        looked(courier)


def test_nothing_is_renewed_after_the_stop(courier: Courier, post: Post, clock: Clock) -> None:
    courier.keep("req", handoff())
    looked(courier)
    assert courier._thread is not None
    courier.stop()
    courier._thread.join(timeout=10)
    assert not courier._thread.is_alive()
    assert post.sent == []


def test_a_release_names_the_reader(courier: Courier, post: Post) -> None:
    courier.release(handoff(), "req")
    wait_for(post.releases)
    assert post.releases() == [{"handoff_id": handoff().handoff_id, "reader": "req"}]


@pytest.mark.parametrize("num_failures", [1, RELEASE_ATTEMPTS - 1])
def test_a_release_that_fails_is_repeated_until_it_is_heard(courier: Courier, post: Post, num_failures: int) -> None:
    post.failures[ADDRESS] = num_failures
    courier.release(handoff(), "req")
    courier.release(handoff(remote_host=OTHER[0]), "req")
    wait_for(lambda: len(post.releases()) == num_failures + 1)
    wait_for(lambda: post.releases(OTHER))


def test_a_release_that_is_never_heard_ends_with_one_warning(courier: Courier, post: Post) -> None:
    post.failures[ADDRESS] = 99
    with log_lines() as warnings:
        courier.release(handoff(), "req")
        wait_for(lambda: warnings)
    assert len(post.releases()) == RELEASE_ATTEMPTS
    [warning] = warnings
    assert f"{HOST}:{PORT}" in warning


def test_neither_renewals_nor_releases_wait_for_an_engine_that_does_not_answer(
    courier: Courier, post: Post, clock: Clock
) -> None:
    post.hangs.add(OTHER)
    for number in range(16):
        courier.release(handoff(remote_host=OTHER[0]), f"req-{number}")
    courier.keep("req", handoff())
    courier.release(handoff(handoff_id="c" * 32), "another")
    looked(courier)
    clock.now += 5
    look_again(courier)
    wait_for(lambda: post.renewals() and post.releases(), timeout_s=3)

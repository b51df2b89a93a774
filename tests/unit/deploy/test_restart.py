"""Restarts back off, forgive old crashes, and end."""

from deploy.restart import RestartPolicy
from deploy.spec import RestartSpec


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_wait_doubles_up_to_its_limit_and_then_it_gives_up() -> None:
    spec = RestartSpec(initial_backoff_s=1, max_backoff_s=5, max_crashes=4, window_s=60)
    policy = RestartPolicy(spec, Clock())
    assert [policy.note_crash() for _ in range(5)] == [1, 2, 4, 5, None]
    assert policy.num_recent_crashes == 5


def test_crashes_outside_the_window_are_forgotten() -> None:
    clock = Clock()
    policy = RestartPolicy(RestartSpec(initial_backoff_s=1, max_crashes=1, window_s=60), clock)
    assert policy.note_crash() == 1
    clock.now += 61
    assert policy.note_crash() == 1
    assert policy.note_crash() is None


def test_no_restart_at_all_can_be_asked_for() -> None:
    assert RestartPolicy(RestartSpec(max_crashes=0), Clock()).note_crash() is None


def test_a_huge_number_of_crashes_still_has_a_finite_wait() -> None:
    policy = RestartPolicy(RestartSpec(max_crashes=3000), Clock())
    assert {policy.note_crash() for _ in range(2000)} == {1, 2, 4, 8, 16, 30}

"""The console: a moving line on a terminal, plain lines elsewhere, silence when nobody can hear."""

import io

from deploy.console import CLEAR_LINE, Console


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_without_a_terminal_progress_is_a_line_every_ten_seconds() -> None:
    clock, stream = Clock(), io.StringIO()
    console = Console(stream, clock)
    for clock.now in (1.0, 9.9, 10.0, 15.0, 20.5):
        console.progress(["router"], ["prefill-0"])
    assert stream.getvalue().splitlines() == [
        "    10 s  waiting for prefill-0  (up: router)",
        "    20 s  waiting for prefill-0  (up: router)",
    ]


def test_on_a_terminal_progress_is_redrawn_and_cleared_before_the_next_line() -> None:
    stream = Terminal()
    console = Console(stream, Clock())
    console.progress([], ["prefill-0"])
    console.say("hello")
    console.say("again")
    assert stream.getvalue().startswith(CLEAR_LINE)
    assert stream.getvalue().endswith(f"{CLEAR_LINE}hello\nagain\n")


def test_when_all_are_up_it_waits_for_the_router_to_see_them() -> None:
    clock, stream = Clock(), io.StringIO()
    console = Console(stream, clock)
    clock.now = 10.0
    console.progress(["prefill-0"], [])
    assert "waiting for the router to see its workers" in stream.getvalue()


def test_a_closed_terminal_silences_it_instead_of_failing_the_launcher() -> None:
    console = Console(Closed(), Clock())
    console.say("one")
    console.say("two")

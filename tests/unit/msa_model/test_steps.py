"""Parts take turns at their collectives, the first always ahead."""

from msa_model.steps import Steps, run_together


def part(name: str, num_steps: int, log: list[str]) -> Steps[str]:
    for number in range(num_steps):
        log.append(f"{name}{number}")
        yield
    return name


def test_parts_take_turns_and_their_values_keep_their_order() -> None:
    log: list[str] = []
    assert run_together([part("a", 2, log), part("b", 2, log)]) == ["a", "b"]
    assert log == ["a0", "b0", "a1", "b1"]


def test_a_part_that_ends_early_does_not_hold_the_other_back() -> None:
    log: list[str] = []
    assert run_together([part("a", 0, log), part("b", 2, log)]) == ["a", "b"]
    assert log == ["b0", "b1"]


def test_nothing_runs_where_there_are_no_parts() -> None:
    assert run_together([]) == []

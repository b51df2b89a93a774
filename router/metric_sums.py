"""Sums of metrics over several processes, so that they read as those of one router.

    counter, histogram   the sum; processes that have ended stay in it, so that it never goes backwards
    gauge                the sum over those that run
    creation, start      the earliest

Pure: a family here is what crosses from process to process; ``router.process_metrics`` makes them.
"""

from collections.abc import Iterable
from typing import NamedTuple

# What only grows while a process lives.
CUMULATIVE = frozenset({"counter", "histogram"})
PROCESS_START = "process_start_time_seconds"
CREATED_SUFFIX = "_created"


class Sample(NamedTuple):
    """One line of the exposition."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Family(NamedTuple):
    """The lines of one metric, and what is said of it."""

    name: str
    kind: str
    text: str
    samples: tuple[Sample, ...]


def add(groups: Iterable[Iterable[Family]]) -> tuple[Family, ...]:
    """Each family once, over all groups, with each of its samples once; in the order in which they first appear."""
    families: dict[str, Family] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for group in groups:
        for family in group:
            families.setdefault(family.name, family)
            of_family = values.setdefault(family.name, {})
            for name, labels, value in family.samples:
                known = of_family.get((name, labels))
                of_family[name, labels] = value if known is None else _join(name, known, value)
    return tuple(
        family._replace(samples=tuple(Sample(*key, value) for key, value in values[family.name].items()))
        for family in families.values()
    )


def cumulative(families: Iterable[Family]) -> tuple[Family, ...]:
    """Those of a process that has ended which still count."""
    return tuple(family for family in families if family.kind in CUMULATIVE)


def _join(name: str, one: float, other: float) -> float:
    is_time = name == PROCESS_START or name.endswith(CREATED_SUFFIX)
    return min(one, other) if is_time else one + other

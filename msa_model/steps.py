"""Work that runs in steps, with a collective under way between two of them, and how several take turns."""

from collections.abc import Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Something that runs in steps, and ends with a value; between two steps a collective is under way."""


def run_together(parts: Sequence[Steps[T]]) -> list[T]:
    """Advance each part in turn to its next collective, until all have ended; their values in order.

    The first is always one step ahead, so each one's collective is under the other's compute, and what the first
    writes to the cache in a layer is there when the second reads it.
    """
    values: dict[int, T] = {}
    while len(values) < len(parts):
        for number, part in enumerate(parts):
            if number in values:
                continue
            try:
                next(part)
            except StopIteration as end:
                values[number] = end.value
    return [values[number] for number in range(len(parts))]

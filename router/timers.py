"""Calls that happen later, as a type: parts that need them take the call as an argument, and tests give them theirs."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that has not happened yet."""

    def cancel(self) -> None:
        """It will not; harmless once it has."""
        ...


CallLater = Callable[[float, Callable[[], None]], Timer]
"""Takes a delay in seconds and what to call then, once."""


def call_later(delay_s: float, callback: Callable[[], None]) -> Timer:
    """The running event loop's own."""
    return asyncio.get_running_loop().call_later(delay_s, callback)

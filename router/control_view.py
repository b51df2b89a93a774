"""What the control routes show, be it of one process that does everything or of several that share the requests."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


async def _nothing() -> None:
    return


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ControlView:
    """How the routes get at what they show.

    Args:
        render: the exposition text of the metrics.
        gather: awaited before ``render``, and before workers are listed: brings in what other processes know.
        is_serving: whether anybody answers clients.
    """

    render: Callable[[], bytes]
    gather: Callable[[], Awaitable[None]] = _nothing
    is_serving: Callable[[], bool] = _always

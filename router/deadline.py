"""The time limit of a whole request: the client's by header, the operator's by setting, the shorter of the two."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from math import isfinite
from typing import Any

from wire.errors import BadRequest, DeadlineExceeded

TIMEOUT_HEADER = "x-request-timeout"


class RequestTimedOut(DeadlineExceeded):
    """The request's own limit was reached; no worker is to blame."""


class RequestDeadlines:
    """Says how long a request may take, and ends it then.

    Args:
        limit_s: of every request; 0: none.
        on_timeout: called for each that reached its limit.
        clock: monotonic seconds.
    """

    def __init__(self, limit_s: float, *, on_timeout: Callable[[], None], clock: Callable[[], float]) -> None:
        self._limit_s, self._on_timeout, self._clock = limit_s or None, on_timeout, clock

    def limit_s(self, headers: Mapping[str, str]) -> float | None:
        """Of a request with these headers; None: it may take as long as it likes.

        Raises:
            BadRequest: the header is not a number of seconds above 0.
        """
        given = headers.get(TIMEOUT_HEADER)
        if given is None:
            return self._limit_s
        try:
            asked_s = float(given)
        except ValueError:
            asked_s = 0.0
        if not isfinite(asked_s) or asked_s <= 0:
            raise BadRequest(
                f"The header `{TIMEOUT_HEADER}` must be a number of seconds above 0.", param=TIMEOUT_HEADER
            )
        return asked_s if self._limit_s is None else min(asked_s, self._limit_s)

    async def bounded(self, work: Coroutine[Any, Any, None], limit_s: float, arrival_s: float) -> None:
        """Run ``work``; when ``limit_s`` from ``arrival_s`` are over, cancel it and wait until it has unwound.

        Raises:
            RequestTimedOut, or what ``work`` raises.
        """
        try:
            async with asyncio.timeout(arrival_s + limit_s - self._clock()) as limit:
                await work
        except TimeoutError:
            if not limit.expired():
                raise
            self._on_timeout()
            raise RequestTimedOut(f"The request was not done within {limit_s:g} s.", code="request_timeout") from None

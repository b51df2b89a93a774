"""How much each client uses the router, by the name of its API key."""

from collections.abc import Collection, Iterable
from math import inf

from wire.errors import Overloaded

# When one of the client's own requests ends is not known; the clients of OpenAI's and Anthropic's libraries double it.
RETRY_AFTER_S = 1


class KeyUsage:
    """Counts requests for each name; one event loop.

    Names are those of the configured keys, so there are few of them. Those of removed keys stay, as their counts must
    not start anew should the key come back.

    Args:
        max_in_flight: of one name at once; None: no limit.
    """

    def __init__(self, max_in_flight: int | None = None) -> None:
        self._limit: float = inf if max_in_flight is None else max_in_flight
        self._in_flight: dict[str, int] = {}
        self._requests: dict[tuple[str, int], int] = {}

    def expect(self, names: Collection[str]) -> None:
        """Count these from 0 on, so that a rate sees the first request too."""
        for name in names:
            self._in_flight.setdefault(name, 0)
            self._requests.setdefault((name, 200), 0)

    def begin(self, name: str) -> None:
        """A request has come; ``end`` must follow, also after a refusal.

        Raises:
            Overloaded: the name has as many in flight as it may.
        """
        self._in_flight[name] += 1
        if self._in_flight[name] > self._limit:
            raise Overloaded(
                f"Only {self._limit} requests of one API key may be in flight.",
                code="too_many_requests_of_key",
                retry_after_s=RETRY_AFTER_S,
            )

    def end(self, name: str, status: int) -> None:
        """The request was answered with ``status``."""
        self._in_flight[name] -= 1
        self._requests[name, status] = self._requests.get((name, status), 0) + 1

    def in_flight(self) -> Iterable[tuple[str, int]]:
        """Each name with its requests that are not yet answered."""
        return self._in_flight.items()

    def requests(self) -> Iterable[tuple[str, int, int]]:
        """Name, status and number of the answered requests."""
        return [(name, status, number) for (name, status), number in self._requests.items()]

"""How much each client uses the router, by the name of its API key."""

from collections.abc import Collection, Iterable
from math import inf

from router.token_usage import TokenUsage
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
        self._tokens: dict[tuple[str, str], int] = {}
        self._without_usage: dict[str, int] = {}

    def expect(self, names: Collection[str]) -> None:
        """Count these from 0 on, so that a rate sees the first request too."""
        for name in names:
            self._in_flight.setdefault(name, 0)
            self._requests.setdefault((name, 200), 0)
            self._without_usage.setdefault(name, 0)
            for kind in TokenUsage._fields:
                self._tokens.setdefault((name, kind), 0)

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

    def add_tokens(self, name: str, usage: TokenUsage | None) -> None:
        """A good answer took so many tokens; None: it did not say."""
        if usage is None:
            self._without_usage[name] += 1
            return
        for kind, number in usage._asdict().items():
            self._tokens[name, kind] += number

    def in_flight(self) -> Iterable[tuple[str, int]]:
        """Each name with its requests that are not yet answered."""
        return self._in_flight.items()

    def requests(self) -> Iterable[tuple[str, int, int]]:
        """Name, status and number of the answered requests."""
        return [(name, status, number) for (name, status), number in self._requests.items()]

    def tokens(self) -> Iterable[tuple[str, str, int]]:
        """Name, ``prompt`` or ``output``, and number of the tokens of good answers."""
        return [(name, kind, number) for (name, kind), number in self._tokens.items()]

    def without_usage(self) -> Iterable[tuple[str, int]]:
        """Each name with its good answers that did not say how many tokens they took."""
        return self._without_usage.items()

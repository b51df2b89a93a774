"""How many tokens may be in flight on the workers of one role, and who waits until there is room.

Pure: nothing here waits or knows asyncio; a waiting request is told its turn by its ``on_turn``.
"""

from collections.abc import Callable

from router.drain_rate import DrainRate
from router.fair_queue import FairQueue, Waiting
from wire.worker import WorkerRole

# More tokens than can ever be in flight, and so much more that a room less this is below 0.
UNLIMITED = 1 << 50
CLOSED = 1 << 55


class Gate:
    """The room of one role.

    A request larger than all the room passes when it is alone. While nothing is known to serve the role nothing waits
    anew: there is nothing to wait for, and whoever picks a worker says so. Those that wait already wait on, unless
    ``is_optional``: a worker that a moment's overload has made unreachable is mostly back before their time is up.

    Args:
        tokens_per_worker: 0: no limit.
        max_queued_tokens: of all that wait. One request may always wait, whatever its size, unless this is 0.
        is_optional: requests can do without the role.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        role: WorkerRole,
        *,
        tokens_per_worker: int,
        max_queued_tokens: int,
        is_optional: bool,
        clock: Callable[[], float],
    ) -> None:
        self.role = role
        self._tokens_per_worker, self._max_queued_tokens = tokens_per_worker, max_queued_tokens
        self.is_optional = is_optional
        self._num_workers = 0
        self._limit = UNLIMITED
        self._queue = FairQueue()
        self._drain_rate = DrainRate(clock)
        self.room = UNLIMITED
        """Tokens that may pass without a wait: what is left of the limit, far below 0 while something waits.

        Whoever passes takes its tokens off here. Whoever is done adds them again, and calls ``let_in`` if this is
        still below 0.
        """

    @property
    def num_in_flight_tokens(self) -> int:
        return self._limit - self.room - (CLOSED if self._queue else 0)

    @property
    def has_workers(self) -> bool:
        return self._num_workers > 0

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def num_waiting_tokens(self) -> int:
        return self._queue.num_tokens

    @property
    def limit_tokens(self) -> int:
        """How many may be in flight; 0: no limit."""
        return 0 if self._limit == UNLIMITED else self._limit

    def set_workers(self, num_workers: int) -> None:
        """So many can be used from now on."""
        limit = num_workers * self._tokens_per_worker or UNLIMITED
        self.room += limit - self._limit
        self._num_workers, self._limit = num_workers, limit
        if self.room < 0:
            self.let_in()

    def may_pass(self, num_tokens: int) -> bool:
        """Whether a request of so many tokens that comes now need not wait."""
        return self._num_workers == 0 or (not self._queue and self._fits(num_tokens))

    def may_wait(self, num_tokens: int) -> bool:
        """Whether the queue has a place for it."""
        if not self._queue:
            return self._max_queued_tokens > 0
        return self._queue.num_tokens + num_tokens <= self._max_queued_tokens

    def retry_after_s(self) -> int:
        """When all that waits now will have had its turn, by the recent rate."""
        return self._drain_rate.retry_after_s(self._queue.num_tokens)

    def join(self, waiting: Waiting) -> None:
        """Wait. When its turn comes its tokens have been taken."""
        if not self._queue:
            self._drain_rate.restart()
            self.room -= CLOSED
        self._queue.push(waiting)
        self.let_in()

    def leave(self, waiting: Waiting) -> None:
        """It waits no longer; its turn has not come."""
        self._queue.remove(waiting)
        if not self._queue:
            self.room += CLOSED
        self.let_in()

    def let_in(self) -> None:
        """Give those their turn for whom there is room now; called after each change that makes some."""
        while (waiting := self._queue.first()) is not None and self._fits(waiting.num_tokens):
            self._queue.pop()
            self.room -= waiting.num_tokens
            if not self._queue:
                self.room += CLOSED
            self._drain_rate.note(waiting.num_tokens)
            waiting.on_turn()

    def _fits(self, num_tokens: int) -> bool:
        if self._num_workers == 0:
            return self.is_optional
        num_in_flight = self.num_in_flight_tokens
        return num_in_flight + num_tokens <= self._limit or num_in_flight == 0

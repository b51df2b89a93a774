"""Keeps streams that have not begun alive: a comment from time to time, so that nothing between takes them for dead.

A load balancer that cuts connections without traffic sees some; a client that is gone without a word is found out when
it doesn't acknowledge them. Clients skip comments, by the standard of server-sent events.
"""

from collections.abc import Callable

from router.reply import Reply
from router.timers import CallLater, Timer, call_later


class Pinger:
    """Pings the streams that it watches, each ``interval_s`` after its arrival and again, until its content begins.

    One timer for all of them, and none while there are none: a stream that begins in time costs an entry in a dict.

    Args:
        interval_s: 0: no pings.
        on_ping: called for each.
        clock: monotonic seconds.
        call_later: calls back once, so many seconds from now.
    """

    def __init__(
        self,
        interval_s: float,
        *,
        on_ping: Callable[[], None],
        clock: Callable[[], float],
        call_later: CallLater = call_later,
    ) -> None:
        self.is_on = interval_s > 0
        self._interval_s, self._on_ping = interval_s, on_ping
        self._clock, self._call_later = clock, call_later
        self._due_s: dict[Reply, float] = {}
        """When each has its next ping; the soonest is the first, give or take the time that a body takes to read."""
        self._timer: Timer | None = None

    def watch(self, reply: Reply, arrival_s: float) -> None:
        """From now on, until ``forget``."""
        self._due_s[reply] = arrival_s + self._interval_s
        if self._timer is None:
            self._timer = self._call_later(self._interval_s, self._ping_due)

    def forget(self, reply: Reply) -> None:
        """It is over; harmless if it is not watched."""
        self._due_s.pop(reply, None)

    def _ping_due(self) -> None:
        self._timer, now_s = None, self._clock()
        for reply, due_s in list(self._due_s.items()):
            if due_s > now_s:
                break
            del self._due_s[reply]
            if reply.may_ping:
                if reply.ping():
                    self._on_ping()
                self._due_s[reply] = now_s + self._interval_s
        if self._due_s:
            self._timer = self._call_later(next(iter(self._due_s.values())) - now_s, self._ping_due)

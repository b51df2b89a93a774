"""Where a request's time went, told to the client that asks for it."""

from collections.abc import Mapping

from starlette.types import Message

from router.endpoints import Stage
from router.reply import Reply

TIMING_HEADER = "x-tandem-timing"
"""``1`` asks for the breakdown."""
SERVER_TIMING = b"server-timing"


class TimedReply(Reply):
    """A reply whose head says, in ``server-timing``, how long each stage took until then, over all attempts.

    ``decode`` includes the wait for the first byte to relay (of a whole answer: for all of it).
    """

    def _head(self, status: int, headers: Mapping[str, str], extra: list[tuple[bytes, bytes]]) -> Message:
        ctx, now_s = self._ctx, self._clock()
        spent_s = dict(ctx.step_s)
        spent_s[ctx.stage] = spent_s.get(ctx.stage, 0.0) + now_s - ctx.entered_s
        if Stage.RELAY in spent_s:
            spent_s[Stage.DECODE] += spent_s.pop(Stage.RELAY)
        value = ", ".join([f"{stage};dur={1000 * seconds:.3f}" for stage, seconds in spent_s.items()])
        return super()._head(status, headers, [*extra, (SERVER_TIMING, value.encode())])

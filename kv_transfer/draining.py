"""Reads that were given up but have not ended. What they write to is pinned: nothing may reuse it before they end.

NIXL can't cancel: a read of a peer that hangs goes on when the peer does, also after its handle was released and the
connection was closed (tried over TCP: all rows landed late). So a request fails in time, and its blocks stay pinned
until NIXL reports an end. A read that NIXL reports as failed may have been cut in several, of which NIXL keeps the last
one only; it counts as ended when its peer is gone.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from kv_transfer.agent import Read, ReadState


@dataclass(slots=True)
class _Given:
    """A read that was given up; without ``read``, one that has failed and whose peer still lives."""

    request_id: str
    engine_id: str
    read: Read | None
    on_end: Callable[[], None]


class Draining:
    """One rank's given-up reads; used by the mover's thread only.

    Args:
        state: of a read.
        release: gives back the handle of a read that has ended.
    """

    def __init__(self, state: Callable[[Read], ReadState], release: Callable[[Read], None]) -> None:
        self._state, self._release = state, release
        self._given: list[_Given] = []
        self._pinned: Counter[str] = Counter()
        self._drained: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._given)

    def add(self, request_id: str, engine_id: str, read: Read | None, on_end: Callable[[], None]) -> None:
        """Give up ``read``; None: it has failed, and may be under way in parts. ``on_end`` is called at its end."""
        self._given.append(_Given(request_id, engine_id, read, on_end))
        self._pinned[request_id] += 1

    def is_under_way(self, engine_id: str) -> bool:
        """Whether a given-up read of that engine has not ended: it does not move bytes, or moves them late."""
        return any(given.read is not None and given.engine_id == engine_id for given in self._given)

    def look(self) -> None:
        """See which have ended."""
        for given in list(self._given):
            if given.read is None:
                continue
            state = self._state(given.read)
            if state is ReadState.PENDING:
                continue
            self._release(given.read)
            if state is ReadState.FAILED:
                given.read = None
            else:
                self._end(given)

    def forget(self, engine_id: str) -> None:
        """That engine is gone, and with it what has failed."""
        for given in list(self._given):
            if given.engine_id == engine_id and given.read is None:
                self._end(given)

    def take_news(self) -> tuple[Counter[str], Counter[str]]:
        """Reads given up and reads ended since the last call, counted by request id."""
        pinned, self._pinned = self._pinned, Counter()
        drained, self._drained = self._drained, Counter()
        return pinned, drained

    def _end(self, given: _Given) -> None:
        self._given.remove(given)
        self._drained[given.request_id] += 1
        given.on_end()

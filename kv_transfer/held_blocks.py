"""One prefill rank's held blocks: who reads them, who is done, and whose blocks can go. Pure; clock injected.

A reader is one decode request. Each decode rank that has read for it says so in a note, with the number of decode
ranks that will: the reader is done with the last of them. A drop waits for readers that have begun, for a short time:
the fence, not this wait, keeps a late reader from believing what it reads.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

# Notes whose hold has not come yet are few (one engine step's worth); those of dropped handoffs must not pile up.
EARLY_NOTES_LIMIT = 4096
# A row set of a long prompt takes milliseconds; a reader that needs longer has died or will find the fence closed.
DRAIN_LIMIT_S = 1.0


@dataclass(slots=True)
class _Reader:
    is_reading: bool = False
    ranks_done: set[int] = field(default_factory=set)
    num_ranks: int = 1

    @property
    def is_done(self) -> bool:
        return len(self.ranks_done) >= self.num_ranks


@dataclass(slots=True)
class Held:
    """One handoff's blocks on this rank, with the lease's place in the fence."""

    request_id: str
    handoff_id: str
    num_readers: int
    slot: int
    serial: int
    since_s: float
    readers: dict[str, _Reader]
    dropped_s: float | None = None

    @property
    def is_read(self) -> bool:
        return sum(reader.is_done for reader in self.readers.values()) >= self.num_readers

    @property
    def is_being_read(self) -> bool:
        return any(reader.is_reading and not reader.is_done for reader in self.readers.values())


class HeldBlocks:
    """Holds wait until all their readers are done, or until they are dropped."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_handoff: dict[str, Held] = {}
        self._handoff_of: dict[str, str] = {}
        self._early: dict[str, dict[str, _Reader]] = {}  # a reader's note can arrive before the hold, or after a drop

    def __len__(self) -> int:
        return len(self._by_handoff)

    def hold(self, request_id: str, handoff_id: str, num_readers: int, slot: int, serial: int) -> None:
        readers = self._early.pop(handoff_id, {})
        self._by_handoff[handoff_id] = Held(request_id, handoff_id, num_readers, slot, serial, self._clock(), readers)
        self._handoff_of[request_id] = handoff_id

    def drop(self, request_ids: Iterable[str]) -> None:
        """Nobody shall begin to read these any more; they are given back when those who read have ended."""
        for request_id in request_ids:
            if (handoff_id := self._handoff_of.get(request_id)) is not None:
                held = self._by_handoff[handoff_id]
                if held.dropped_s is None:
                    held.dropped_s = self._clock()

    def forget(self, serials: Iterable[int]) -> None:
        """These were revoked: vLLM has taken their blocks itself, so they are never given back."""
        gone = set(serials)
        for held in [held for held in self._by_handoff.values() if held.serial in gone]:
            self._remove(held)

    def note_begin(self, handoff_id: str, reader: str) -> None:
        """``reader`` has begun to read the blocks."""
        self._reader(handoff_id, reader).is_reading = True

    def note_done(self, handoff_id: str, reader: str, rank: int = 0, num_ranks: int = 1) -> None:
        """Decode rank ``rank`` of the ``num_ranks`` that read here for ``reader`` needs the blocks no longer."""
        state = self._reader(handoff_id, reader)
        if state.is_done:
            return  # one that let go for all its ranks may still be told of by one of them
        state.num_ranks = num_ranks
        state.ranks_done.add(rank)

    def take_finished(self) -> list[Held]:
        """Those whose blocks this rank gives back now, each once."""
        finished = [held for held in self._by_handoff.values() if self._may_go(held)]
        for held in finished:
            self._remove(held)
        return finished

    def _remove(self, held: Held) -> None:
        del self._by_handoff[held.handoff_id]
        del self._handoff_of[held.request_id]

    def _may_go(self, held: Held) -> bool:
        if held.is_read:
            return True
        if held.dropped_s is None:
            return False
        return not held.is_being_read or self._clock() - held.dropped_s >= DRAIN_LIMIT_S

    def _reader(self, handoff_id: str, reader: str) -> _Reader:
        if (held := self._by_handoff.get(handoff_id)) is not None:
            return held.readers.setdefault(reader, _Reader())
        state = self._early.setdefault(handoff_id, {}).setdefault(reader, _Reader())
        while len(self._early) > EARLY_NOTES_LIMIT:
            del self._early[next(iter(self._early))]
        return state

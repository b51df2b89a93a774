"""One prefill rank's held blocks: which readers are done, and whose blocks can be given back. Pure; clock injected."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

# Notes whose hold has not come yet are few (one engine step's worth); those of dropped handoffs must not pile up.
EARLY_NOTES_LIMIT = 4096


@dataclass(slots=True)
class _Held:
    request_id: str
    num_readers: int
    since_s: float
    done: set[str]  # by name, so that no reader counts twice


class HeldBlocks:
    """Holds wait until all their readers are done, or until they are dropped."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_handoff: dict[str, _Held] = {}
        self._early: dict[str, set[str]] = {}  # a reader's note can arrive before the hold, or after a drop
        self._dropped: set[str] = set()

    def __len__(self) -> int:
        return len(self._by_handoff)

    def hold(self, request_id: str, handoff_id: str, num_readers: int) -> None:
        done = self._early.pop(handoff_id, set())
        self._by_handoff[handoff_id] = _Held(request_id, num_readers, self._clock(), done)

    def drop(self, request_ids: Iterable[str]) -> None:
        """Give these back with the next ``take_finished``, whoever has read them."""
        self._dropped.update(request_ids)

    def note_reader(self, handoff_id: str, reader: str) -> None:
        """``reader`` needs the blocks no longer."""
        held = self._by_handoff.get(handoff_id)
        done = held.done if held is not None else self._early.setdefault(handoff_id, set())
        done.add(reader)
        while len(self._early) > EARLY_NOTES_LIMIT:
            del self._early[next(iter(self._early))]

    def take_finished(self) -> set[str]:
        """Request ids whose blocks this rank gives back now, each once."""
        finished = {
            handoff_id: held.request_id
            for handoff_id, held in self._by_handoff.items()
            if len(held.done) >= held.num_readers or held.request_id in self._dropped
        }
        for handoff_id in finished:
            del self._by_handoff[handoff_id]
        self._dropped.clear()
        return set(finished.values())

    def quiet_s(self) -> float:
        """Seconds since the youngest hold came; 0 when a drop waits or nothing is held."""
        if self._dropped or not self._by_handoff:
            return 0.0
        return self._clock() - max(held.since_s for held in self._by_handoff.values())

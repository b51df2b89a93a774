"""Leases: prefill's promises to keep a handoff's blocks until a time. Pure; the clock is injected.

    (none) --grant--> HELD --release | deadline--> DROPPING --end--> (gone)
                        `-------- all read: end ------------------------^

The table lives in prefill's scheduler. Workers report when all readers are done; ``end`` closes the lease then. A lease
that is released or runs out is handed once to the workers by ``take_due`` and stays counted until they confirm.
``release`` may be called from another thread than the rest.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

# A release can overtake the grant it is meant for (the client leaves while prefill still computes); it is remembered
# for longer than any router waits for a prefill leg, and for no more ids than a fleet has in flight.
EARLY_RELEASE_TTL_S = 900.0
EARLY_RELEASE_LIMIT = 65_536


class LeaseState(Enum):
    HELD = "held"
    DROPPING = "dropping"


class DropReason(Enum):
    RELEASED = "released"
    EXPIRED = "expired"


@dataclass(slots=True)
class Lease:
    handoff_id: str
    request_id: str
    deadline_s: float
    state: LeaseState = LeaseState.HELD
    is_released: bool = False


class LeaseTable:
    """All live leases of one prefill engine.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_handoff: dict[str, Lease] = {}
        self._handoff_of: dict[str, str] = {}
        self._early: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_handoff)

    def grant(self, handoff_id: str, request_id: str, lease_s: float) -> bool:
        """Promise the blocks of ``request_id`` for ``lease_s`` seconds.

        Returns:
            False when the handoff was released before it was granted, or the id was used before: then nothing is held.
        """
        with self._lock:
            if self._early.pop(handoff_id, None) is not None or handoff_id in self._by_handoff:
                return False
            self._by_handoff[handoff_id] = Lease(handoff_id, request_id, self._clock() + lease_s)
            self._handoff_of[request_id] = handoff_id
            return True

    def release(self, handoff_id: str) -> bool:
        """Give up a handoff whatever its state; idempotent. Returns whether a live lease was found."""
        with self._lock:
            lease = self._by_handoff.get(handoff_id)
            if lease is not None:
                lease.is_released = True
                return True
            self._remember_early(handoff_id)
            return False

    def take_due(self) -> list[tuple[str, DropReason]]:
        """Request ids whose blocks are to be given back now, each returned once."""
        now, due = self._clock(), []
        with self._lock:
            for lease in self._by_handoff.values():
                if lease.state is LeaseState.HELD and (lease.is_released or now >= lease.deadline_s):
                    lease.state = LeaseState.DROPPING
                    due.append((lease.request_id, DropReason.RELEASED if lease.is_released else DropReason.EXPIRED))
        return due

    def end(self, request_id: str) -> None:
        """Close the lease of ``request_id``: every rank has given its blocks back."""
        with self._lock:
            if (handoff_id := self._handoff_of.pop(request_id, None)) is not None:
                del self._by_handoff[handoff_id]

    def _remember_early(self, handoff_id: str) -> None:
        now = self._clock()
        self._early[handoff_id] = now
        self._early.move_to_end(handoff_id)
        while self._early and (
            len(self._early) > EARLY_RELEASE_LIMIT or next(iter(self._early.values())) < now - EARLY_RELEASE_TTL_S
        ):
            self._early.popitem(last=False)

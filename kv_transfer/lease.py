"""Leases: prefill's promises to keep a handoff's blocks while somebody will read them. Pure; the clock is injected.

    (none) --grant--> HELD --release | deadline | revoke--> DROPPING --end--> (gone)
                     ^   |`------------- all have read: end -------------------^
                     `---'  renew: a new deadline

The table lives in prefill's scheduler. The ranks report when all readers are done; ``end`` closes the lease then. A
lease that is released or runs out is handed once to the ranks by ``take_due``, in the order of deadlines, and stays
counted until they confirm. ``release`` and ``renew`` may be called from another thread than the rest.
"""

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from kv_transfer.fence import NUM_SLOTS, FenceSlots

# A release can overtake the grant it is meant for (the client leaves while prefill still computes), and no handoff id
# may be granted twice; ids are remembered for longer than any router waits for a prefill leg, and for no more of them
# than a fleet has in flight.
MEMORY_TTL_S = 900.0
MEMORY_LIMIT = 65_536


class LeaseState(Enum):
    HELD = "held"
    DROPPING = "dropping"


class DropReason(Enum):
    RELEASED = "released"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(slots=True)
class Lease:
    """One handoff's promise. ``request_id`` owns the blocks; ``deadline_s`` is monotonic."""

    handoff_id: str
    request_id: str
    lease_s: float
    deadline_s: float
    slot: int
    serial: int
    state: LeaseState = LeaseState.HELD


class LeaseTable:
    """All live leases of one prefill engine.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float], num_slots: int = NUM_SLOTS) -> None:
        self._clock = clock
        self._slots = FenceSlots(num_slots)
        self._by_handoff: dict[str, Lease] = {}
        self._handoff_of: dict[str, str] = {}
        self._deadlines: list[tuple[float, int]] = []  # a heap of (deadline, serial); renewed leases are in it again
        self._by_serial: dict[int, Lease] = {}
        self._released: list[Lease] = []
        self._remembered: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_handoff)

    def is_live(self, handoff_id: str) -> bool:
        """Whether its blocks are held."""
        with self._lock:
            return handoff_id in self._by_handoff

    def num_in_state(self) -> dict[LeaseState, int]:
        """How many leases are in each state."""
        counts = dict.fromkeys(LeaseState, 0)
        with self._lock:
            for lease in self._by_handoff.values():
                counts[lease.state] += 1
        return counts

    def grant(self, handoff_id: str, request_id: str, lease_s: float) -> Lease | None:
        """Promise the blocks of ``request_id`` for ``lease_s`` seconds from now, or from the last renewal.

        Returns:
            None when the handoff was released before it was granted, its id was used before, or no slot is free: then
            nothing is held.
        """
        with self._lock:
            if handoff_id in self._remembered or handoff_id in self._by_handoff:
                return None
            if (place := self._slots.take()) is None:
                return None
            lease = Lease(handoff_id, request_id, lease_s, self._clock() + lease_s, *place)
            self._by_handoff[handoff_id] = self._by_serial[lease.serial] = lease
            self._handoff_of[request_id] = handoff_id
            heapq.heappush(self._deadlines, (lease.deadline_s, lease.serial))
            return lease

    def renew(self, handoff_ids: Iterable[str]) -> list[str]:
        """Start the time of these leases anew, since their readers still wait. Returns those that are over."""
        over, now = [], self._clock()
        with self._lock:
            for handoff_id in handoff_ids:
                lease = self._by_handoff.get(handoff_id)
                if lease is None or lease.state is not LeaseState.HELD:
                    over.append(handoff_id)
                    continue
                lease.deadline_s = now + lease.lease_s
                heapq.heappush(self._deadlines, (lease.deadline_s, lease.serial))
        return over

    def release(self, handoff_id: str) -> bool:
        """Give up a handoff whatever its state; idempotent. Returns whether a live lease was found."""
        with self._lock:
            lease = self._by_handoff.get(handoff_id)
            if lease is None:
                self._remember(handoff_id)
                return False
            self._released.append(lease)
            return True

    def revoke(self, request_id: str) -> Lease | None:
        """Take a promise back at once: the blocks of ``request_id`` are no longer its own. The lease is gone."""
        with self._lock:
            return self._close(request_id)

    def take_due(self) -> list[tuple[Lease, DropReason]]:
        """Leases whose blocks are to be given back now, each returned once."""
        due = []
        with self._lock:
            for lease in self._released:
                if lease.state is LeaseState.HELD and lease.serial in self._by_serial:  # not ended meanwhile
                    due.append((lease, DropReason.RELEASED))
                    lease.state = LeaseState.DROPPING
            self._released.clear()
            now = self._clock()
            while self._deadlines and self._deadlines[0][0] <= now:
                deadline_s, serial = heapq.heappop(self._deadlines)
                late = self._by_serial.get(serial)
                if late is not None and late.state is LeaseState.HELD and late.deadline_s == deadline_s:
                    due.append((late, DropReason.EXPIRED))
                    late.state = LeaseState.DROPPING
        return due

    def end(self, request_id: str) -> None:
        """Close the lease of ``request_id``: every rank has given its blocks back."""
        with self._lock:
            self._close(request_id)

    def _close(self, request_id: str) -> Lease | None:
        if (handoff_id := self._handoff_of.pop(request_id, None)) is None:
            return None
        lease = self._by_handoff.pop(handoff_id)
        del self._by_serial[lease.serial]
        self._slots.give_back(lease.slot)
        self._remember(handoff_id)
        return lease

    def _remember(self, handoff_id: str) -> None:
        now = self._clock()
        self._remembered[handoff_id] = now
        self._remembered.move_to_end(handoff_id)
        while self._remembered and (
            len(self._remembered) > MEMORY_LIMIT or next(iter(self._remembered.values())) < now - MEMORY_TTL_S
        ):
            self._remembered.popitem(last=False)

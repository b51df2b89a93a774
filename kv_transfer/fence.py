"""The fence: how a reader knows, without asking, that what it has read was still promised. Pure but for numpy.

Each prefill rank registers one array of 64-bit words. A lease gets a word (its slot) and a serial number, greater than
any before it. While the lease lives, its word is below its serial. Before the blocks of a lease are given back, the
rank writes the serial into the word. A reader reads rows first and the word after: a word below the serial proves that
the blocks were still its own when the rows had been read. No clock is compared, and prefill's CPU takes no part.

A slot that is used again gets a greater serial, so an old reader finds its own lease over for ever.
"""

from collections import deque

import numpy as np

NUM_SLOTS = 1 << 16
WORD_BYTES = 8


class Fence:
    """One rank's words: uint64 [num_slots], zero at first."""

    def __init__(self, num_slots: int = NUM_SLOTS) -> None:
        self.words = np.zeros(num_slots, dtype=np.uint64)

    def end(self, slot: int, serial: int) -> None:
        """The lease of ``serial`` is over; from now on no reader believes it."""
        if int(self.words[slot]) < serial:
            self.words[slot] = serial


def is_live(word: int, serial: int) -> bool:
    """What ``word``, read after the rows, says about the lease of ``serial``."""
    return word < serial


class FenceSlots:
    """Gives out slots and serials, in the scheduler of prefill; the same for all of its ranks."""

    def __init__(self, num_slots: int = NUM_SLOTS) -> None:
        self._free = deque(range(num_slots))
        self._serial = 0

    def take(self) -> tuple[int, int] | None:
        """A slot and a new serial; None when all slots are taken. Freed slots rest for as long as possible."""
        if not self._free:
            return None
        self._serial += 1
        return self._free.popleft(), self._serial

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

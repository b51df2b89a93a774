"""The order in which waiting requests get their turn: by priority, then fairly between API keys, then by arrival.

Fairness is start-time fair queuing by tokens. A queue has a virtual time, the start tag of the request that was taken
last. Each key's first request in line has a start tag: the virtual time, or the end of what the key was given before,
whichever is later. The lowest tag goes first, and moves the end of its key by its tokens. So keys that always have
something waiting get the same number of tokens, give or take one request each, whatever they send; a key that comes
anew goes level with the others and not before them; and what a key had while nobody waited is not held against it.

Strict: the first request in order is the first to be taken, however large. A smaller one behind it that would fit does
not pass it, or large ones would never get their turn. Pure: nothing here waits or knows the time of day.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

# A heap of so many flows more than twice the requests holds mostly flows whose requests have left.
MAX_IDLE_FLOWS = 64


@dataclass(slots=True, eq=False)
class Waiting:
    """One request in a queue."""

    num_tokens: int
    """At least 1."""
    priority: int
    """Lower is earlier."""
    key: str
    """Whom the tokens are counted for."""
    on_turn: Callable[[], None]
    """For whoever takes it out of the queue to call; must not raise, nor touch the queue."""
    number: int = 0
    """Place in the order of arrivals. Set by the queue, like the next one."""
    is_queued: bool = False


@dataclass(slots=True, eq=False)
class _Flow:
    """The waiting requests of one key and priority, by number."""

    priority: int
    key: str
    start: int = 0
    """Start tag of its first request, as far as it is known."""
    waiting: OrderedDict[int, Waiting] = field(default_factory=OrderedDict)


class FairQueue:
    """Waiting requests in the order above."""

    def __init__(self) -> None:
        self._flows: dict[tuple[int, str], _Flow] = {}
        # Each flow once: priority, start tag and number of its first request. These only grow, so an entry that is
        # behind the truth comes to the top too early, never too late, and is put right there.
        self._heap: list[tuple[int, int, int, _Flow]] = []
        self._ends: dict[str, int] = {}
        self._now = 0
        self._numbers = count(1)
        self.num_tokens = 0
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, waiting: Waiting) -> None:
        """At the end of its key's line."""
        waiting.number, waiting.is_queued = next(self._numbers), True
        flow_id = (waiting.priority, waiting.key)
        flow = self._flows.get(flow_id)
        if flow is None:
            flow = self._flows[flow_id] = _Flow(*flow_id, start=self._start_tag(waiting.key))
            heappush(self._heap, (flow.priority, flow.start, waiting.number, flow))
        elif not flow.waiting:
            flow.start = self._start_tag(waiting.key)
        flow.waiting[waiting.number] = waiting
        self._num_waiting += 1
        self.num_tokens += waiting.num_tokens

    def first(self) -> Waiting | None:
        """Whose turn it is; it stays in the queue."""
        while self._heap:
            _, start, number, flow = self._heap[0]
            if not flow.waiting:
                heappop(self._heap)
                del self._flows[flow.priority, flow.key]
                continue
            head = next(iter(flow.waiting.values()))
            # The key may have been given something since, by another priority; or the head may be another.
            flow.start = max(flow.start, self._ends.get(flow.key, 0))
            if (flow.start, head.number) == (start, number):
                return head
            heapreplace(self._heap, (flow.priority, flow.start, head.number, flow))
        return None

    def pop(self) -> Waiting:
        """Take the first; there must be one."""
        head = self.first()
        assert head is not None
        flow = self._heap[0][3]
        self._now = max(self._now, flow.start)
        self._ends[head.key] = flow.start + head.num_tokens
        flow.start = self._start_tag(head.key)
        self._take(flow, head)
        self._tidy()
        return head

    def remove(self, waiting: Waiting) -> None:
        """It left; its key is charged nothing. It must be in the queue."""
        self._take(self._flows[waiting.priority, waiting.key], waiting)
        self._tidy()

    def _start_tag(self, key: str) -> int:
        return max(self._now, self._ends.get(key, 0))

    def _take(self, flow: _Flow, waiting: Waiting) -> None:
        del flow.waiting[waiting.number]
        waiting.is_queued = False
        self._num_waiting -= 1
        self.num_tokens -= waiting.num_tokens

    def _tidy(self) -> None:
        if not self._num_waiting:
            # Nobody waits, so nobody can be treated unfairly by what was.
            self._heap.clear()
            self._flows.clear()
            self._ends.clear()
            self._now = 0
        elif len(self._heap) > 2 * self._num_waiting + MAX_IDLE_FLOWS:
            self._heap = [entry for entry in self._heap if entry[3].waiting]
            heapify(self._heap)
            self._flows = {flow_id: flow for flow_id, flow in self._flows.items() if flow.waiting}

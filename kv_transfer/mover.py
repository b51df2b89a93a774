"""One rank's transfer thread: it alone uses the NIXL agent, so that the engine's step never waits for a transfer.

    engine thread --give(orders)--> mover --take()--> engine thread

While something is under way the mover looks again after a tenth of the time since the last event, between 20 us and
1 ms: short transfers are seen at once, long waits cost no core. Otherwise it looks every 20 ms, since a peer may want
to connect, or to read what is held no longer and find that out.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from kv_transfer.agent import KVAgent
from kv_transfer.connector_stats import RowConnectorStats
from kv_transfer.fence import Fence
from kv_transfer.held_blocks import Held, HeldBlocks
from kv_transfer.notes import decode
from kv_transfer.peer_rows import ConnectedPeers
from kv_transfer.pulls import PullsInFlight
from kv_transfer.step import StepMetadata

logger = logging.getLogger("vllm.tandem.kv_transfer")

PAUSE_PER_AGE = 0.1
MIN_PAUSE_S, MAX_PAUSE_S = 20e-6, 1e-3
IDLE_PAUSE_S = 0.02
# A note that was sent last still has to leave, and a computed prompt may be read before its engine knows of a reader:
# longer than a step of a laptop takes.
LINGER_S = 5.0


@dataclass(slots=True)
class Moved:
    """What has ended since the last look, by request id. ``failed`` is a part of ``received``."""

    received: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    given_back: set[str] = field(default_factory=set)
    pinned: Counter[str] = field(default_factory=Counter)  # reads that were given up, whose blocks must not be reused
    drained: Counter[str] = field(default_factory=Counter)  # such reads that have ended
    stats: RowConnectorStats | None = None

    def __bool__(self) -> bool:
        return bool(self.received or self.given_back or self.drained)


class Mover:
    """Runs a rank's reads (decode) and held blocks (prefill) in a thread of its own.

    Args:
        agent: with its rows and words registered; used by nobody else from ``start`` on.
        fence: this rank's words.
        pulls: reads in flight; owned by the thread from ``start`` on.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        agent: KVAgent,
        fence: Fence,
        peers: ConnectedPeers,
        pulls: PullsInFlight,
        *,
        clock: Callable[[], float] = time.monotonic,
        linger_s: float = LINGER_S,
    ) -> None:
        self._agent, self._fence, self._peers, self._pulls = agent, fence, peers, pulls
        self._clock, self._linger_s = clock, linger_s
        self._held = HeldBlocks(clock)
        self._stats = RowConnectorStats()
        self._orders: list[StepMetadata] = []
        self._leaving: set[str] = set()  # engines that are gone, until no read of them is under way
        self._moved = Moved()
        self._has_moved = threading.Condition()
        self._wake = threading.Event()
        self._is_stopping = False
        self._error: BaseException | None = None
        self._last_event_s = float("-inf")
        self._thread = threading.Thread(target=self._run, name="kv-mover", daemon=True)

    def start(self, prepare_thread: Callable[[], None] = lambda: None) -> None:
        """``prepare_thread`` is called first in the mover's thread: a GPU's memory needs its context there."""
        self._prepare_thread = prepare_thread
        self._thread.start()

    # Engine thread

    def give(self, orders: StepMetadata) -> None:
        """Hand over a step's orders; returns at once."""
        with self._has_moved:
            self._orders.append(orders)
        self._wake.set()

    def take(self, wait_s: float = 0.0) -> Moved:
        """What has ended since the last call; waits up to ``wait_s`` seconds for something to end.

        Raises:
            RuntimeError: the mover has died; nothing will end any more.
        """
        with self._has_moved:
            if wait_s > 0:
                self._has_moved.wait_for(lambda: bool(self._moved) or self._error is not None, wait_s)
            if self._error is not None:
                raise RuntimeError("the KV transfer thread has died") from self._error
            moved, self._moved = self._moved, Moved()
            moved.stats = self._stats.take()
        return moved

    def stop(self) -> None:
        """End the thread, which then has let go of every peer and of the registered memory."""
        self._is_stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    # Mover's thread

    def _run(self) -> None:
        try:
            self._prepare_thread()
            while not self._is_stopping:
                self._wait()
                self._turn()
            self._peers.close()
            self._agent.close()
        except BaseException as e:
            logger.exception("the KV transfer thread has died")
            with self._has_moved:
                self._error = e
                self._has_moved.notify_all()

    def _wait(self) -> None:
        age_s = self._clock() - self._last_event_s
        if self._held or self._pulls or age_s < self._linger_s:
            self._wake.wait(min(max(age_s * PAUSE_PER_AGE, MIN_PAUSE_S), MAX_PAUSE_S))
        else:
            self._wake.wait(IDLE_PAUSE_S)
        self._wake.clear()

    def _turn(self) -> None:
        """Take orders, move everything on by what is possible without waiting, and report."""
        with self._has_moved:
            orders, self._orders = self._orders, []
        for order in orders:
            self._obey(order)
        stats = RowConnectorStats()
        has_notes = self._read_notes()
        received, failed = self._pulls.move_on(stats)
        self._let_leave()
        pinned, drained = self._pulls.draining.take_news()
        given_back = {held.request_id for held in self._give_back()}
        if orders or has_notes or received or given_back:
            self._last_event_s = self._clock()
        with self._has_moved:
            if not stats.is_empty():
                self._stats.aggregate(stats)
            self._moved.pinned += pinned
            self._moved.drained += drained
            if received or given_back or drained:
                self._moved.received |= received
                self._moved.failed |= failed
                self._moved.given_back |= given_back
                self._has_moved.notify_all()

    def _obey(self, order: StepMetadata) -> None:
        for engine_id in order.fenced:
            self._pulls.give_up_on(engine_id, f"engine {engine_id} is gone")
            self._leaving.add(engine_id)
        for peer in order.peers:
            self._peers.meet(peer.engine_id, peer.hellos)
        for hold in order.holds:
            self._held.hold(hold.request_id, hold.handoff_id, hold.num_readers, hold.slot, hold.serial)
        for note in order.notes:
            self._held.note_done(note.handoff_id, note.reader, note.rank, note.num_ranks)
        self._held.forget(serial for _, serial in order.revoked)
        self._held.drop(order.drops)
        for pull in order.pulls:
            self._pulls.begin(pull)

    def _let_leave(self) -> None:
        for engine_id in [gone for gone in self._leaving if not self._pulls.is_busy(gone)]:
            self._leaving.remove(engine_id)
            self._pulls.draining.forget(engine_id)
            self._peers.forget(engine_id)

    def _read_notes(self) -> bool:
        payloads = self._agent.notes()
        for payload in payloads:
            note = decode(payload)
            if note is None:
                logger.warning("a peer sent a note that can't be read: %d bytes", len(payload))
            elif note.is_done:
                self._held.note_done(note.handoff_id, note.reader, note.rank, note.num_ranks)
            else:
                self._held.note_begin(note.handoff_id, note.reader)
        return bool(payloads)

    def _give_back(self) -> list[Held]:
        finished = self._held.take_finished()
        for held in finished:
            self._fence.end(held.slot, held.serial)  # before anybody may write to the blocks
        return finished

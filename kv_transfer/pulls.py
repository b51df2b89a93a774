"""Decode's reads in flight on one rank: rows of every source rank, then its fence word, then the verdict.

posted --rows done--> fence word posted --word below the serial--> received
   `--- error, time-out, word not below the serial ---> failed; what is still in flight drains (``draining``)
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from kv_transfer.agent import KVAgent, PostFailed, Read, ReadState, ReadTelemetry
from kv_transfer.connector_stats import RowConnectorStats
from kv_transfer.draining import Draining
from kv_transfer.fence import is_live
from kv_transfer.notes import Note
from kv_transfer.peer_rows import ConnectedPeers, Source
from kv_transfer.step import Pull
from kv_transfer.transport_watch import TransportWatch
from wire.errors import LeaseExpired, TransferError, TransferFailed

logger = logging.getLogger("vllm.tandem.kv_transfer")

NUM_SCRATCH_WORDS = 4096


@dataclass(slots=True)
class _Part:
    """What is in flight from one source rank: first the rows, then the word."""

    source: Source
    rows: Read | None
    word: Read | None = None
    scratch: int = -1
    telemetry: ReadTelemetry | None = None

    @property
    def current(self) -> Read | None:
        return self.word if self.word is not None else self.rows


@dataclass(slots=True)
class _InFlight:
    pull: Pull
    posted_s: float
    parts: list[_Part] = field(default_factory=list)
    error: Exception | None = None


class PullsInFlight:
    """All pulls of this rank; used by the mover's thread only.

    Args:
        scratch: uint64 words registered with ``agent``, where fence words arrive.
        read_timeout_s: a pull that takes longer is given up.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        agent: KVAgent,
        peers: ConnectedPeers,
        scratch: np.ndarray,
        *,
        watch: TransportWatch,
        read_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._agent, self._peers, self._scratch, self._watch = agent, peers, scratch, watch
        self._num_watched = 0
        self._free_scratch = list(range(len(scratch)))
        self._read_timeout_s, self._clock = read_timeout_s, clock
        self._new: list[Pull] = []
        self._in_flight: list[_InFlight] = []
        self.draining = Draining(agent.state, agent.abandon)

    def __len__(self) -> int:
        return len(self._new) + len(self._in_flight) + len(self.draining)

    def is_busy(self, engine_id: str) -> bool:
        """Whether a read of that engine has not ended."""
        in_flight = any(pull.pull.handoff.remote_engine_id == engine_id for pull in self._in_flight)
        return in_flight or self.draining.is_under_way(engine_id)

    def begin(self, pull: Pull) -> None:
        """Queue a pull; it is posted with the next ``move_on``."""
        self._new.append(pull)

    def give_up_on(self, engine_id: str, reason: str) -> None:
        """Fail every pull from that engine that is in flight."""
        for pull in self._in_flight:
            if pull.pull.handoff.remote_engine_id == engine_id:
                self._give_up(pull, TransferFailed(reason))

    def move_on(self, stats: RowConnectorStats) -> tuple[set[str], set[str]]:
        """Post what is new, look at what is in flight; the request ids of pulls that have ended, and of failed ones."""
        self.draining.look()
        new, self._new = self._new, []
        for order in new:
            self._in_flight.append(self._post(order, stats))
        ended, failed = set(), set()
        for pull in self._in_flight:
            self._advance(pull)
            if pull.parts and any(part.current is not None for part in pull.parts):
                continue
            if pull.error is None and pull.parts:
                self._check_transport(pull, stats)
            request_id = pull.pull.request_id
            ended.add(request_id)
            if pull.error is not None:
                failed.add(request_id)
                stats.count("failures")
                if isinstance(pull.error, LeaseExpired):
                    stats.count("expired_reads")
            elif pull.parts:
                self._record(pull, stats)
        if ended:
            self._in_flight = [pull for pull in self._in_flight if pull.pull.request_id not in ended]
        return ended, failed

    def _post(self, order: Pull, stats: RowConnectorStats) -> _InFlight:
        pull = _InFlight(order, self._clock())
        try:
            if order.refusal is not None:
                raise TransferFailed(order.refusal)
            if self._watch.refusal is not None:
                raise TransferFailed(self._watch.refusal)
            engine_id = order.handoff.remote_engine_id
            if self.draining.is_under_way(engine_id):
                raise TransferFailed(f"engine {engine_id} does not move bytes: earlier reads of it have not ended")
            for source in self._peers.sources(engine_id):
                self._post_part(pull, source)
        except Exception as e:  # noqa: BLE001 - one bad handoff must fail its own request, not the engine
            self._fail(pull, e)
        stats.sample("queue_seconds", self._clock() - order.asked_s)
        return pull

    def _post_part(self, pull: _InFlight, source: Source) -> None:
        order = pull.pull
        if not source.reads:
            self._agent.notify(source.reader.peer, self._note(order, source, is_done=True))
            return
        if max(order.remote_block_ids) >= source.reader.peer_blocks:
            raise TransferFailed(f"it names block {max(order.remote_block_ids)} of {source.reader.peer_blocks}")
        if order.handoff.lease_slot >= source.num_fence_words:
            raise TransferFailed(f"it names fence word {order.handoff.lease_slot} of {source.num_fence_words}")
        self._agent.notify(source.reader.peer, self._note(order, source, is_done=False))
        part = _Part(source, None)
        pull.parts.append(part)
        with self._posting(pull, part):
            part.rows = self._agent.read(source.reader, order.block_ids, order.remote_block_ids)

    @contextmanager
    def _posting(self, pull: _InFlight, part: _Part) -> Iterator[None]:
        """A read that is posted in part is given up, not forgotten."""
        try:
            yield
        except PostFailed as e:
            self._end_badly(pull, part, e.read, ReadState.LOST if e.is_lost else ReadState.FAILED)
            raise
        except Exception:
            self._free_word(part)
            raise

    def _note(self, order: Pull, source: Source, *, is_done: bool) -> bytes:
        number, total = source.reader_number, source.num_readers
        return Note(order.handoff.handoff_id, order.request_id, number, total, is_done).encode()

    def _advance(self, pull: _InFlight) -> None:
        for part in pull.parts:
            try:
                self._advance_part(pull, part)
            except Exception as e:  # noqa: BLE001 - as in _post
                self._fail(pull, e)
        # Also where another part has failed already: the request must not wait for a rank that hangs.
        is_in_flight = any(part.current is not None for part in pull.parts)
        if is_in_flight and self._clock() - pull.posted_s > self._read_timeout_s:
            self._give_up(pull, TransferFailed(f"its rows did not arrive within {self._read_timeout_s:g} s"))

    def _advance_part(self, pull: _InFlight, part: _Part) -> None:
        read = part.current
        if read is None or (state := self._agent.state(read)) is ReadState.PENDING:
            return
        is_word = part.word is not None
        if state is not ReadState.DONE:
            part.rows = part.word = None
            self._end_badly(pull, part, read, state)
            raise TransferFailed("the connection is gone" if state is ReadState.LOST else "NIXL reports an error")
        telemetry = self._agent.finish(read)
        part.rows = part.word = None
        if not is_word:
            part.telemetry = telemetry
            if pull.error is None:
                self._post_word(pull, part)
                self._advance_part(pull, part)  # a word often arrives with its posting
            return
        word = int(self._scratch[part.scratch])
        self._free_word(part)
        if not is_live(word, pull.pull.handoff.lease_serial):
            raise LeaseExpired("prefill took its blocks back before they had been read")

    def _post_word(self, pull: _InFlight, part: _Part) -> None:
        part.scratch = self._free_scratch.pop()
        self._scratch[part.scratch] = np.iinfo(np.uint64).max  # a word that never arrives must not look live
        note = self._note(pull.pull, part.source, is_done=True)
        with self._posting(pull, part):
            part.word = self._agent.read_word(part.source.reader, pull.pull.handoff.lease_slot, part.scratch, note)

    def _free_word(self, part: _Part) -> None:
        if part.scratch >= 0:
            self._free_scratch.append(part.scratch)
            part.scratch = -1

    def _give_up(self, pull: _InFlight, error: Exception) -> None:
        """Fail the pull; what is in flight drains."""
        self._fail(pull, error)
        for part in pull.parts:
            if (read := part.current) is not None:
                part.rows = part.word = None
                self._drain(pull, part, read)

    def _end_badly(self, pull: _InFlight, part: _Part, read: Read, state: ReadState) -> None:
        """``read`` of ``part`` has ended without success."""
        self._agent.abandon(read)
        if state is ReadState.LOST:
            self._free_word(part)
        else:
            self._drain(pull, part, None)

    def _drain(self, pull: _InFlight, part: _Part, read: Read | None) -> None:
        order = pull.pull
        self.draining.add(order.request_id, order.handoff.remote_engine_id, read, partial(self._free_word, part))

    def _fail(self, pull: _InFlight, error: Exception) -> None:
        is_expected = isinstance(error, TransferError)
        if pull.error is None:
            pull.error = error
            logger.log(
                logging.WARNING if is_expected else logging.ERROR,
                "handoff %s of request %s failed: %s: %s",
                pull.pull.handoff.handoff_id,
                pull.pull.request_id,
                type(error).__name__,
                error,
                exc_info=None if is_expected else error,
            )

    def _check_transport(self, pull: _InFlight, stats: RowConnectorStats) -> None:
        """After the first read since a peer was met: UCX has chosen its link by then."""
        if self._num_watched == self._peers.num_met:
            return
        read = next(part for part in pull.parts if part.telemetry is not None)
        assert read.telemetry is not None
        num_bytes = read.telemetry.num_bytes // read.telemetry.num_posted
        try:
            self._watch.look(stats, num_bytes, read.source.reader.memory)
        except OSError as e:  # UCX's log can't be read now; the next pull looks again
            logger.warning("which link rows take can't be told: %s", e)
            if self._watch.must_know:
                self._fail(pull, TransferFailed(f"which link its rows took can't be told: {e}"))
            return
        self._num_watched = self._peers.num_met
        if self._watch.refusal is not None:
            self._fail(pull, TransferFailed(self._watch.refusal))

    def _record(self, pull: _InFlight, stats: RowConnectorStats) -> None:
        num_blocks = len(pull.pull.block_ids)
        reads = [part.telemetry for part in pull.parts if part.telemetry is not None]
        stats.record_pull(reads, num_blocks=num_blocks)
        logger.debug(
            "handoff %s: %d blocks, %d descriptors, %d bytes from %d rank(s), posted in %.6f s, on the wire %.6f s",
            pull.pull.handoff.handoff_id,
            num_blocks,
            sum(read.num_posted for read in reads),
            sum(read.num_bytes for read in reads),
            len(reads),
            sum(read.post_s for read in reads),
            max((read.transfer_s for read in reads), default=0.0),
        )

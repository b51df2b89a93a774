"""The prefill engines that this decode rank is connected to, and which of their rows it reads how."""

import logging
from dataclasses import dataclass

from kv_transfer.agent import KVAgent, RowReader, RowRegion, WordRegion
from kv_transfer.handshake import Hello, decode_hello
from kv_transfer.layout import RowLayout
from kv_transfer.plan import Piece, plan_reads
from kv_transfer.rank_map import map_ranks, readers_of
from wire.errors import HandshakeMismatch

logger = logging.getLogger("vllm.tandem.kv_transfer")


@dataclass(frozen=True, slots=True)
class Source:
    """One prefill rank, from here: how its rows are read, or only that it must be told (``reads`` is False)."""

    reader: RowReader
    reads: bool
    num_readers: int
    """Decode ranks of ours that tell it when they are done."""
    reader_number: int
    """Which of them this rank is."""
    num_fence_words: int


class ConnectedPeers:
    """Connects to a peer's ranks once; used by the mover's thread only.

    Args:
        layout: this rank's row.
        num_kv_heads: of the whole model.
    """

    def __init__(self, agent: KVAgent, layout: RowLayout, *, tp_size: int, tp_rank: int, num_kv_heads: int) -> None:
        self._agent, self._layout = agent, layout
        self._tp_size, self._tp_rank, self._num_kv_heads = tp_size, tp_rank, num_kv_heads
        self._hellos: dict[str, list[bytes]] = {}
        self.num_met = 0
        self._sources: dict[str, tuple[Source, ...]] = {}

    def meet(self, engine_id: str, hellos: list[bytes]) -> None:
        """Take the ranks of an engine whose greeting the scheduler side has accepted, and connect to them."""
        self._hellos[engine_id] = hellos
        self.num_met += 1
        try:
            self.sources(engine_id)
        except Exception as e:  # noqa: BLE001 - a bad peer must fail its own handoffs, not the engine
            logger.error("engine %s can't be read from: %s: %s", engine_id, type(e).__name__, e)

    def sources(self, engine_id: str) -> tuple[Source, ...]:
        """The ranks of an engine that this rank reads or tells; connects again where that has failed before.

        Raises:
            HandshakeMismatch: the engine was not met, or its rows don't fit ours.
        """
        if (sources := self._sources.get(engine_id)) is not None:
            return sources
        if (hellos := self._hellos.get(engine_id)) is None:
            raise HandshakeMismatch(f"engine {engine_id} is not connected")
        sources = self._sources[engine_id] = self._connect([decode_hello(hello) for hello in hellos])
        reads = [source.reader.num_pieces for source in sources if source.reads]
        logger.info("peer %s: %d rank(s) to read from, descriptors a block: %s", engine_id, len(reads), reads)
        return sources

    def forget(self, engine_id: str) -> None:
        """Let go of an engine that is gone; no read of it may be under way."""
        self._hellos.pop(engine_id, None)
        for source in self._sources.pop(engine_id, ()):
            try:
                self._agent.disconnect(source.reader)
            except Exception as e:  # noqa: BLE001 - the peer may be dead, and NIXL says so in many ways
                logger.info("disconnecting from %s: %s", engine_id, e)

    def close(self) -> None:
        for engine_id in list(self._hellos):
            self.forget(engine_id)

    def _connect(self, hellos: list[Hello]) -> tuple[Source, ...]:
        ranks = map_ranks(len(hellos), self._tp_size, self._tp_rank, self._num_kv_heads)
        sources: list[tuple[int, tuple[Piece, ...], bool]] = []
        for read in ranks.reads:
            hello = hellos[read.source_rank]
            try:
                pieces = plan_reads(hello.layout, self._layout, read)
            except ValueError as e:
                raise HandshakeMismatch(str(e)) from e
            sources.append((read.source_rank, pieces, True))
        sources += [(rank, (), False) for rank in ranks.notify_only]
        connected: list[Source] = []
        try:
            for planned in sources:
                connected.append(self._source(hellos, *planned))
        except Exception:
            for source in connected:
                self._agent.disconnect(source.reader)
            raise
        return tuple(connected)

    def _source(self, hellos: list[Hello], rank: int, pieces: tuple[Piece, ...], reads: bool) -> Source:
        hello = hellos[rank]
        rows = RowRegion(hello.base_address, hello.layout.row_bytes, hello.num_blocks, hello.device_id, hello.memory)
        words = WordRegion(hello.fence_address, hello.num_fence_words)
        tellers = readers_of(len(hellos), self._tp_size, rank, self._num_kv_heads)
        return Source(
            self._agent.connect(hello.agent_metadata, rows, pieces, words),
            reads,
            len(tellers),
            tellers.index(self._tp_rank),
            hello.num_fence_words,
        )

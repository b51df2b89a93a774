"""Ranks of engines with real NIXL agents and small rows in host memory; several live in one test process."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kv_transfer.agent import KVAgent, RowRegion
from kv_transfer.connector_stats import RowConnectorStats
from kv_transfer.fence import Fence
from kv_transfer.handshake import Hello, encode_hello
from kv_transfer.layout import RowLayout, pool_row
from kv_transfer.mover import LINGER_S, Moved, Mover
from kv_transfer.notes import Note, decode
from kv_transfer.peer_rows import ConnectedPeers
from kv_transfer.pulls import PullsInFlight
from kv_transfer.step import Hold, PeerRows, Pull, StepMetadata
from kv_transfer.transport import TransportReader
from kv_transfer.transport_watch import TransportWatch
from tests.unit.kv_transfer.factories import HANDOFF_ID, handoff
from tests.unit.kv_transfer.model import GEOMETRY

NUM_WORDS, NUM_SCRATCH = 8, 4
SLOT, SERIAL = 5, 17


class Rank:
    """One rank of an engine, prefill or decode, whose mover is not started.

    Args:
        wrap: class of its NIXL agent, for tests that delay or break it.
        clock: of its reads in flight.
    """

    def __init__(
        self,
        name: str,
        *,
        num_blocks: int = 12,
        tp_size: int = 1,
        tp_rank: int = 0,
        num_kv_heads: int = GEOMETRY.num_kv_heads,
        wrap: type[KVAgent] = KVAgent,
        read_timeout_s: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
        watch: TransportWatch | None = None,
        linger_s: float = LINGER_S,
    ) -> None:
        self.layout: RowLayout = pool_row(GEOMETRY, tp_size)
        self.rows = np.zeros((num_blocks, self.layout.row_bytes), dtype=np.uint8)
        self.fence = Fence(NUM_WORDS)
        self.scratch = np.zeros(NUM_SCRATCH, dtype=np.uint64)
        self.agent = wrap(name, ["UCX"])
        self.agent.register_words(self.fence.words, self.scratch)
        self.region = RowRegion(self.rows.ctypes.data, self.layout.row_bytes, num_blocks, 0, "DRAM")
        self.hello = Hello(
            tp_rank=tp_rank,
            layout=self.layout,
            num_blocks=num_blocks,
            base_address=self.region.base_address,
            device_id=0,
            memory="DRAM",
            fence_address=self.fence.words.ctypes.data,
            num_fence_words=NUM_WORDS,
            agent_metadata=self.agent.register(self.region),
        )
        self.peers = ConnectedPeers(
            self.agent, self.layout, tp_size=tp_size, tp_rank=tp_rank, num_kv_heads=num_kv_heads
        )
        self.pulls = PullsInFlight(
            self.agent,
            self.peers,
            self.scratch,
            watch=watch or TransportWatch(TransportReader({}), (), refuses=True),
            read_timeout_s=read_timeout_s,
            clock=clock,
        )
        self.mover = Mover(self.agent, self.fence, self.peers, self.pulls, linger_s=linger_s)
        self.stats = RowConnectorStats()
        self.heard: list[Note] = []

    def fill(self, seed: int = 0) -> None:
        self.rows[:] = np.random.default_rng(seed).integers(1, 256, self.rows.shape, dtype=np.uint8)

    def meet(self, engine_id: str, *sources: "Rank") -> None:
        """Connect to the ranks of a prefill engine."""
        self.peers.meet(engine_id, [encode_hello(source.hello) for source in sources])

    def move(self, *sources: "Rank", timeout_s: float = 30.0) -> tuple[set[str], set[str]]:
        """Move this rank's pulls on until one ends, and its sources' agents with it; ended and failed ids."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            ended, failed = self.pulls.move_on(self.stats)
            if ended:
                return ended, failed
            for source in sources:
                source.listen()
        raise AssertionError("no pull has ended")

    def listen(self) -> None:
        """Take in notes, which also moves the agent's work on."""
        for payload in self.agent.notes():
            note = decode(payload)
            assert note is not None
            self.heard.append(note)

    def hears(self, number: int, *others: "Rank") -> list[Note]:
        """The first ``number`` notes that have come here; ``others`` may still have to send them."""
        deadline = time.monotonic() + 20
        while len(self.heard) < number:
            assert time.monotonic() < deadline, f"only {self.heard} came"
            for rank in (self, *others):
                rank.listen()
        return self.heard

    def close(self) -> None:
        self.peers.close()
        self.agent.close()


def pull(
    engine_id: str, mine: Sequence[int], theirs: Sequence[int], *, request_id: str = "req", **changes: Any
) -> Pull:
    """A pull whose handoff holds by ``SLOT`` and ``SERIAL`` if nothing else is said."""
    refusal = changes.pop("refusal", None)
    place: dict[str, Any] = {"lease_slot": SLOT, "lease_serial": SERIAL, "remote_block_ids": list(theirs)}
    promised = handoff(remote_engine_id=engine_id, **(place | changes))
    return Pull(request_id, promised, list(mine), list(theirs), time.monotonic(), refusal)


def orders(engine_id: str, *sources: Rank, pulls: Sequence[Pull] = ()) -> StepMetadata:
    """Meet an engine and pull from it."""
    return StepMetadata(
        peers=[PeerRows(engine_id, [encode_hello(source.hello) for source in sources])], pulls=list(pulls)
    )


def hold(request_id: str = "p", *, num_readers: int = 1) -> StepMetadata:
    return StepMetadata(holds=[Hold(request_id, HANDOFF_ID, num_readers, SLOT, SERIAL)])


def taken(rank: Rank, timeout_s: float = 30.0) -> Moved:
    """What ends next on a rank whose mover runs, and what was counted until then."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        moved = rank.mover.take(0.5)
        if moved.stats is not None:
            rank.stats.aggregate(moved.stats)
        if moved:
            return moved
    raise AssertionError("nothing has ended")

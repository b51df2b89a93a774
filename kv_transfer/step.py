"""What the scheduler side tells the worker side with each engine step."""

from collections import Counter
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from kv_transfer.notes import Note
from wire.handoff import KVHandoff


@dataclass(slots=True)
class HelloMetadata(KVConnectorHandshakeMetadata):
    """One rank's encoded hello, on its way from the worker to the scheduler side."""

    hello: bytes


@dataclass(slots=True)
class DrainNews(KVConnectorWorkerMetadata):
    """From a rank to the scheduler side: reads that were given up and reads that have ended since, by request id."""

    pinned: Counter[str]
    drained: Counter[str]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "DrainNews":
        assert isinstance(other, DrainNews)
        return DrainNews(self.pinned + other.pinned, self.drained + other.drained)


@dataclass(slots=True)
class PeerRows:
    """Decode: an engine that may be read from, and its ranks' encoded hellos, rank 0 first."""

    engine_id: str
    hellos: list[bytes]


@dataclass(slots=True)
class Pull:
    """Decode: read ``remote_block_ids`` into ``block_ids``; with a ``refusal`` only report that it failed."""

    request_id: str
    handoff: KVHandoff
    block_ids: list[int]
    remote_block_ids: list[int]
    asked_s: float  # monotonic time at which the scheduler asked
    refusal: str | None = None


@dataclass(slots=True)
class Hold:
    """Prefill: the blocks of ``request_id`` wait for ``num_readers`` readers of ``handoff_id``."""

    request_id: str
    handoff_id: str
    num_readers: int
    slot: int
    serial: int


@dataclass(slots=True)
class StepMetadata(KVConnectorMetadata):
    """Orders of one step; every rank gets the same."""

    peers: list[PeerRows] = field(default_factory=list)  # decode: newly met
    fenced: list[str] = field(default_factory=list)  # decode: engine ids that are gone
    pulls: list[Pull] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    drops: list[str] = field(default_factory=list)  # prefill: request ids whose blocks are given back unread
    notes: list[Note] = field(default_factory=list)  # prefill: readers that were done without reading
    revoked: list[tuple[int, int]] = field(default_factory=list)  # prefill: (slot, serial) to end before the forward
    is_idle: bool = False  # the step computes nothing: the engine only polls for transfers

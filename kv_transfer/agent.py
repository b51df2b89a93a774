"""The only file that speaks to NIXL: register rows, read rows, notify. Not thread-safe; one thread owns an agent."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

from kv_transfer.plan import Piece


class ReadState(Enum):
    PENDING = "PROC"
    DONE = "DONE"
    FAILED = "ERR"


@dataclass(frozen=True, slots=True)
class RowRegion:
    """Registered rows of one rank: ``num_blocks`` rows of ``row_bytes`` from ``base_address`` on."""

    base_address: int
    row_bytes: int
    num_blocks: int
    device_id: int
    memory: Literal["DRAM", "VRAM"]


@dataclass(frozen=True, slots=True)
class RowReader:
    """A prepared pair of descriptor lists: any block of a peer's rows into any block of ours."""

    peer: str
    num_pieces: int
    local_blocks: int
    peer_blocks: int
    local: Any
    remote: Any


@dataclass(frozen=True, slots=True)
class ReadTelemetry:
    """What NIXL did for one finished read. ``num_descriptors`` is after NIXL merged neighbours."""

    num_posted: int
    num_descriptors: int
    num_bytes: int
    post_s: float
    transfer_s: float


@dataclass(slots=True)
class Read:
    """A read in flight."""

    handle: Any
    num_posted: int


class KVAgent:
    """One NIXL agent with one registered region of rows.

    The thread affinity of the process is left as it is.
    """

    def __init__(self, name: str, backends: Sequence[str]) -> None:
        config = nixl_agent_config(backends=list(backends), capture_telemetry=True)
        self._nixl = nixl_agent(name, config)
        self._region: RowRegion | None = None
        self._registered: Any = None

    def register(self, region: RowRegion) -> bytes:
        """Register the rows and return the metadata that a peer needs to reach them."""
        size = region.row_bytes * region.num_blocks
        self._registered = self._nixl.register_memory(
            [(region.base_address, size, region.device_id, "")], region.memory
        )
        self._region = region
        metadata: bytes = self._nixl.get_agent_metadata()
        return metadata

    def connect(self, metadata: bytes, rows: RowRegion, pieces: Sequence[Piece]) -> RowReader:
        """Learn a peer and prepare reads of its rows; later reads only name block ids.

        One strided line covers one piece of every block: index ``piece * num_blocks + block``.
        """
        mine = self._region
        assert mine is not None, "register first"
        peer = self._nixl.add_remote_agent(metadata)
        name = peer.decode() if isinstance(peer, bytes) else peer
        local = self._prepare("NIXL_INIT_AGENT", mine, [(p.destination_offset, p.num_bytes) for p in pieces])
        remote = self._prepare(name, rows, [(p.source_offset, p.num_bytes) for p in pieces])
        return RowReader(name, len(pieces), mine.num_blocks, rows.num_blocks, local, remote)

    def disconnect(self, reader: RowReader) -> None:
        """Forget a peer; only when no read of it is in flight."""
        self._nixl.release_dlist_handle(reader.local)
        self._nixl.release_dlist_handle(reader.remote)
        self._nixl.remove_remote_agent(reader.peer)

    def read(self, reader: RowReader, blocks: Sequence[int], peer_blocks: Sequence[int], note: bytes) -> Read:
        """Post one read of whole rows; the peer gets ``note`` when it is done."""
        local = _indices(blocks, reader.local_blocks, reader.num_pieces)
        remote = _indices(peer_blocks, reader.peer_blocks, reader.num_pieces)
        handle = self._nixl.make_prepped_xfer("READ", reader.local, local, reader.remote, remote, note)
        self._nixl.transfer(handle)
        return Read(handle, len(local))

    def state(self, read: Read) -> ReadState:
        return ReadState(self._nixl.check_xfer_state(read.handle))

    def finish(self, read: Read) -> ReadTelemetry:
        """Telemetry of a finished read, whose handle is given back."""
        t = self._nixl.get_xfer_telemetry(read.handle)
        self._nixl.release_xfer_handle(read.handle)
        return ReadTelemetry(read.num_posted, t.descCount, t.totalBytes, t.postDuration / 1e6, t.xferDuration / 1e6)

    def abandon(self, read: Read) -> None:
        """Give back the handle of a failed read."""
        self._nixl.release_xfer_handle(read.handle)

    def notify(self, peer: str, note: bytes) -> None:
        self._nixl.send_notif(peer, note)

    def notes(self) -> list[bytes]:
        """Notes that have arrived since the last call, from all peers."""
        return [note for notes in self._nixl.get_new_notifs().values() for note in notes]

    def close(self) -> None:
        """Deregister the rows; the memory may be freed afterwards."""
        if self._registered is not None:
            self._nixl.deregister_memory(self._registered)
            self._registered = None

    def _prepare(self, owner: str, rows: RowRegion, pieces: list[tuple[int, int]]) -> Any:
        lines = [
            [rows.base_address + offset, size, rows.device_id, rows.row_bytes, rows.num_blocks]
            for offset, size in pieces
        ]
        return self._nixl.prep_xfer_dlist(owner, np.array(lines, dtype=np.uint64), rows.memory)


def _indices(blocks: Sequence[int], num_blocks: int, num_pieces: int) -> np.ndarray:
    """Descriptor indices of all pieces of ``blocks``, block by block: int32 [len(blocks) * num_pieces]."""
    index = np.asarray(blocks, dtype=np.int64)[:, None] + np.arange(num_pieces, dtype=np.int64) * num_blocks
    return index.ravel().astype(np.int32)

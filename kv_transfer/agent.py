"""The only file that speaks to NIXL: register rows, read rows, notify.

One thread owns an agent. Transfers need somebody to drive them on both sides, also while that thread computes: either
NIXL's progress thread, which spins on a core of its own for as long as the agent lives, or a thread of ours that looks
every ``TICK_S`` while the owner says that something is under way, and sleeps otherwise. On two CPU cores the first made
an idle engine take one of them; without either, a read waited out the 1.8 s for which its source was busy.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

from kv_transfer.plan import Piece

TICK_S = 0.001
# A note that was sent last still has to leave, and a computed prompt may be read before its engine knows of a reader:
# longer than a step of a laptop takes.
LINGER_S = 5.0


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

    Args:
        enable_progress_thread: let NIXL spin on a core instead of ticking.
        linger_s: ticking goes on for so long after the last activity.
    """

    def __init__(
        self, name: str, backends: Sequence[str], *, enable_progress_thread: bool = False, linger_s: float = LINGER_S
    ) -> None:
        config = nixl_agent_config(
            backends=list(backends), capture_telemetry=True, enable_prog_thread=enable_progress_thread
        )
        self._nixl = nixl_agent(name, config)
        self._region: RowRegion | None = None
        self._registered: Any = None
        self._notes: list[bytes] = []
        self._lock = threading.RLock()  # NIXL agents are not thread-safe by default
        self._is_active, self._is_closed = threading.Event(), False
        self._active_until_s, self._linger_s = 0.0, linger_s
        self._ticker: threading.Thread | None = None
        if not enable_progress_thread:
            self._ticker = threading.Thread(target=self._tick, name="kv-progress", daemon=True)
            self._ticker.start()

    def set_active(self, is_active: bool) -> None:
        """Say whether a read of ours or of our rows may be under way, so that it is driven."""
        with self._lock:
            if is_active:
                self._active_until_s = float("inf")
                self._is_active.set()
            elif self._active_until_s == float("inf"):
                self._active_until_s = time.monotonic() + self._linger_s

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
        with self._lock:
            peer = self._nixl.add_remote_agent(metadata)
            name = peer.decode() if isinstance(peer, bytes) else peer
            local = self._prepare("NIXL_INIT_AGENT", mine, [(p.destination_offset, p.num_bytes) for p in pieces])
            remote = self._prepare(name, rows, [(p.source_offset, p.num_bytes) for p in pieces])
        return RowReader(name, len(pieces), mine.num_blocks, rows.num_blocks, local, remote)

    def disconnect(self, reader: RowReader) -> None:
        """Forget a peer; only when no read of it is in flight."""
        with self._lock:
            self._nixl.release_dlist_handle(reader.local)
            self._nixl.release_dlist_handle(reader.remote)
            self._nixl.remove_remote_agent(reader.peer)

    def read(self, reader: RowReader, blocks: Sequence[int], peer_blocks: Sequence[int], note: bytes) -> Read:
        """Post one read of whole rows; the peer gets ``note`` when it is done."""
        local = _indices(blocks, reader.local_blocks, reader.num_pieces)
        remote = _indices(peer_blocks, reader.peer_blocks, reader.num_pieces)
        with self._lock:
            handle = self._nixl.make_prepped_xfer("READ", reader.local, local, reader.remote, remote, note)
            self._nixl.transfer(handle)
        return Read(handle, len(local))

    def state(self, read: Read) -> ReadState:
        with self._lock:
            return ReadState(self._nixl.check_xfer_state(read.handle))

    def finish(self, read: Read) -> ReadTelemetry:
        """Telemetry of a finished read, whose handle is given back."""
        with self._lock:
            t = self._nixl.get_xfer_telemetry(read.handle)
            self._nixl.release_xfer_handle(read.handle)
        return ReadTelemetry(read.num_posted, t.descCount, t.totalBytes, t.postDuration / 1e6, t.xferDuration / 1e6)

    def abandon(self, read: Read) -> None:
        """Give back the handle of a failed read."""
        with self._lock:
            self._nixl.release_xfer_handle(read.handle)

    def notify(self, peer: str, note: bytes) -> None:
        self.set_active(True)
        with self._lock:
            self._nixl.send_notif(peer, note)

    def notes(self) -> list[bytes]:
        """Notes that have arrived since the last call, from all peers."""
        with self._lock:
            self._drive()
            notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """Deregister the rows; the memory may be freed afterwards."""
        self._is_closed = True
        self._is_active.set()
        if self._ticker is not None:
            self._ticker.join()
        if self._registered is not None:
            self._nixl.deregister_memory(self._registered)
            self._registered = None

    def _tick(self) -> None:
        while self._is_active.wait() and not self._is_closed:
            with self._lock:
                if time.monotonic() > self._active_until_s:
                    self._is_active.clear()
                self._drive()
            time.sleep(TICK_S)

    def _drive(self) -> None:
        for notes in self._nixl.get_new_notifs().values():  # also moves UCX's work on
            self._notes += notes

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

"""The only file that speaks to NIXL: register rows and fence words, read them from peers, notify.

An agent belongs to one thread. Transfers need somebody to drive them on both sides: the owner, by asking for notes or
states (``mover``), or NIXL's own progress thread. That spins on a core for as long as the agent lives, and between two
H200s it halves the rate (bench/results/transfer-h200x2.md).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

from kv_transfer.fence import WORD_BYTES
from kv_transfer.plan import Piece

logger = logging.getLogger("vllm.tandem.kv_transfer")

Memory = Literal["DRAM", "VRAM"]


class ReadState(Enum):
    """LOST: the connection is gone, and UCX has ended all that was under way on it. FAILED: any other error."""

    PENDING = "PROC"
    DONE = "DONE"
    FAILED = "ERR"
    LOST = "LOST"


@dataclass(frozen=True, slots=True)
class RowRegion:
    """Registered rows of one rank: ``num_blocks`` rows of ``row_bytes`` from ``base_address`` on."""

    base_address: int
    row_bytes: int
    num_blocks: int
    device_id: int
    memory: Memory


@dataclass(frozen=True, slots=True)
class WordRegion:
    """A peer's registered fence words, in host memory."""

    base_address: int
    num_words: int


@dataclass(frozen=True, slots=True)
class RowReader:
    """A prepared pair of descriptor lists: any block of a peer's rows into any block of ours; and its fence words."""

    peer: str
    num_pieces: int
    local_blocks: int
    peer_blocks: int
    local: Any
    remote: Any
    memory: Memory
    """Of our rows."""
    remote_words: Any = None


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


class PostFailed(Exception):
    """A read could not be posted whole; parts of ``read`` may be under way unless ``is_lost``."""

    def __init__(self, read: Read, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.read, self.is_lost = read, _is_lost(cause)


class KVAgent:
    """One NIXL agent with one registered region of rows, and words of its own for its readers and its reads.

    The thread affinity of the process is left as it is.

    Args:
        enable_progress_thread: let NIXL spin on a core, so that transfers go on without the owner.
    """

    def __init__(self, name: str, backends: Sequence[str], *, enable_progress_thread: bool = False) -> None:
        config = nixl_agent_config(
            backends=list(backends), capture_telemetry=True, enable_prog_thread=enable_progress_thread
        )
        self._nixl = nixl_agent(name, config)
        self._region: RowRegion | None = None
        self._registered: list[Any] = []
        self._scratch: Any = None

    def register(self, region: RowRegion) -> bytes:
        """Register the rows and return the metadata that a peer needs to reach all that is registered by now."""
        self._register(region.base_address, region.row_bytes * region.num_blocks, region.device_id, region.memory)
        self._region = region
        metadata: bytes = self._nixl.get_agent_metadata()
        return metadata

    def register_words(self, words: np.ndarray, scratch: np.ndarray) -> None:
        """Register ``words``, which peers may read, and ``scratch``, where words of peers arrive; before ``register``.

        Both uint64 [n], kept alive by the caller until ``close``.
        """
        for array in (words, scratch):
            self._register(array.ctypes.data, array.nbytes, 0, "DRAM")
        self._scratch = self._prepare_words("NIXL_INIT_AGENT", scratch.ctypes.data, len(scratch))

    def connect(
        self, metadata: bytes, rows: RowRegion, pieces: Sequence[Piece], words: WordRegion | None = None
    ) -> RowReader:
        """Learn a peer and prepare reads of its rows; later reads only name block ids.

        One strided line covers one piece of every block: index ``piece * num_blocks + block``.
        """
        mine = self._region
        assert mine is not None, "register first"
        peer = self._nixl.add_remote_agent(metadata)
        name = peer.decode() if isinstance(peer, bytes) else peer
        local = remote = None
        if pieces:  # a replica is only told, and NIXL takes no empty list
            local = self._prepare("NIXL_INIT_AGENT", mine, [(p.destination_offset, p.num_bytes) for p in pieces])
            remote = self._prepare(name, rows, [(p.source_offset, p.num_bytes) for p in pieces])
        peer_words = None if words is None else self._prepare_words(name, words.base_address, words.num_words)
        return RowReader(name, len(pieces), mine.num_blocks, rows.num_blocks, local, remote, mine.memory, peer_words)

    def disconnect(self, reader: RowReader) -> None:
        """Forget a peer; only when no read of it is in flight, as this ends none."""
        try:
            for prepared in (reader.local, reader.remote, reader.remote_words):
                if prepared is not None:
                    self._nixl.release_dlist_handle(prepared)
        finally:
            self._nixl.remove_remote_agent(reader.peer)

    def read(self, reader: RowReader, blocks: Sequence[int], peer_blocks: Sequence[int], note: bytes = b"") -> Read:
        """Post one read of rows; the peer gets ``note``, if not empty, when it is done.

        NIXL joins rows that follow each other on both sides into one copy, but only where they rise, and a pool that
        has been used hands blocks out in falling runs: those are turned round. Sorting always would cost short reads
        more than it gains.
        """
        mine, theirs = np.array(blocks, dtype=np.int32), np.array(peer_blocks, dtype=np.int32)
        if len(theirs) > 1 and (theirs[0] - theirs[1] == 1 or theirs[-2] - theirs[-1] == 1):
            order = np.argsort(theirs)
            mine, theirs = mine[order], theirs[order]
        local = _indices(mine, reader.local_blocks, reader.num_pieces)
        remote = _indices(theirs, reader.peer_blocks, reader.num_pieces)
        return self._post(reader.local, local, reader.remote, remote, note)

    def read_word(self, reader: RowReader, word: int, scratch: int, note: bytes) -> Read:
        """Post a read of the peer's fence word ``word`` into ``scratch`` word number ``scratch``, with a ``note``."""
        local, remote = np.array([scratch], dtype=np.int32), np.array([word], dtype=np.int32)
        return self._post(self._scratch, local, reader.remote_words, remote, note)

    def state(self, read: Read) -> ReadState:
        """Also moves UCX's work on. A read that NIXL can't follow any more has failed."""
        try:
            return ReadState(self._nixl.check_xfer_state(read.handle))
        except Exception as e:  # noqa: BLE001 - the bindings raise classes of their own
            return ReadState.LOST if _is_lost(e) else ReadState.FAILED

    def finish(self, read: Read) -> ReadTelemetry:
        """Telemetry of a finished read, whose handle is given back."""
        t = self._nixl.get_xfer_telemetry(read.handle)
        self._nixl.release_xfer_handle(read.handle)
        return ReadTelemetry(read.num_posted, t.descCount, t.totalBytes, t.postDuration / 1e6, t.xferDuration / 1e6)

    def abandon(self, read: Read) -> None:
        """Give back the handle of a read that has ended without success. It cancels nothing (``draining``)."""
        try:
            self._nixl.release_xfer_handle(read.handle)
        except Exception as e:  # noqa: BLE001 - the bindings raise classes of their own
            logger.warning("the handle of a failed read is lost: %s", e)

    def notify(self, peer: str, note: bytes) -> None:
        self._nixl.send_notif(peer, note)

    def notes(self) -> list[bytes]:
        """Notes that have arrived since the last call, from all peers. Also moves UCX's work on."""
        return [note for notes in self._nixl.get_new_notifs().values() for note in notes]

    def close(self) -> None:
        """Deregister everything; the memory may be freed afterwards."""
        for registered in self._registered:
            self._nixl.deregister_memory(registered)
        self._registered.clear()

    def _register(self, address: int, size: int, device_id: int, memory: Memory) -> None:
        self._registered.append(self._nixl.register_memory([(address, size, device_id, "")], memory))

    def _post(self, local_list: Any, local: np.ndarray, remote_list: Any, remote: np.ndarray, note: bytes) -> Read:
        read = Read(self._nixl.make_prepped_xfer("READ", local_list, local, remote_list, remote, note), len(local))
        try:
            self._nixl.transfer(read.handle)
        except Exception as e:
            raise PostFailed(read, e) from e
        return read

    def _prepare(self, owner: str, rows: RowRegion, pieces: list[tuple[int, int]]) -> Any:
        lines = [
            [rows.base_address + offset, size, rows.device_id, rows.row_bytes, rows.num_blocks]
            for offset, size in pieces
        ]
        return self._nixl.prep_xfer_dlist(owner, np.array(lines, dtype=np.uint64), rows.memory)

    def _prepare_words(self, owner: str, address: int, num_words: int) -> Any:
        line = np.array([[address, WORD_BYTES, 0, WORD_BYTES, num_words]], dtype=np.uint64)
        return self._nixl.prep_xfer_dlist(owner, line, "DRAM")


def _is_lost(error: Exception) -> bool:
    return type(error).__name__ == "nixlRemoteDisconnectError"


def _indices(blocks: np.ndarray, num_blocks: int, num_pieces: int) -> np.ndarray:
    """Descriptor indices of all pieces of ``blocks`` int32 [n], block by block: int32 [n * num_pieces]."""
    if num_pieces == 1:
        return blocks
    return (blocks[:, None] + np.arange(num_pieces, dtype=np.int32) * np.int32(num_blocks)).ravel()

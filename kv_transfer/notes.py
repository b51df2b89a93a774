"""Notes between ranks, as NIXL carries them: who has begun to read a handoff's blocks, and who is done. Pure."""

from dataclasses import dataclass

_BEGIN, _DONE = "b", "d"


@dataclass(frozen=True, slots=True)
class Note:
    """From decode rank ``rank``, one of ``num_ranks`` that read here, on behalf of the request ``reader``."""

    handoff_id: str
    reader: str
    rank: int = 0
    num_ranks: int = 1
    is_done: bool = True

    def encode(self) -> bytes:
        verb = _DONE if self.is_done else _BEGIN
        return f"{verb} {self.handoff_id} {self.rank} {self.num_ranks} {self.reader}".encode()


def decode(payload: bytes) -> Note | None:
    """None for anything that is no note: a peer of another version must not end this engine."""
    try:
        verb, handoff_id, rank, num_ranks, reader = payload.decode().split(" ", 4)
        note = Note(handoff_id, reader, int(rank), int(num_ranks), verb == _DONE)
    except ValueError:  # too few parts, no number, or not UTF-8
        return None
    return note if verb in (_BEGIN, _DONE) and 0 <= note.rank < note.num_ranks else None

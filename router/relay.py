"""Carries decode's answer to the client, byte for byte, and notices when it is not whole."""

from collections.abc import Callable

from router.reply import Reply
from router.worker_client import WorkerBroken, WorkerStream

ERROR_STARTS = (b'data: {"error":', b"event: error")


async def relay(
    stream: WorkerStream,
    reply: Reply,
    first: bytes | None,
    ends: tuple[bytes, ...],
    *,
    clock: Callable[[], float],
    on_gap: Callable[[float], None],
) -> None:
    """Send the worker's answer on.

    Args:
        first: what was read of it already where it is a stream; None: it is whole.
        ends: how the last event of a whole stream may begin.
        on_gap: takes the seconds between two pieces of a stream.

    Raises:
        WorkerBroken: the answer ended early or was empty. Nothing has been sent, or a stream of whole events.
        WorkerTimeout: the same, by silence.
    """
    if first is None:
        await _relay_whole(stream, reply)
    else:
        await _relay_events(stream, reply, first, ends, clock, on_gap)


def is_event_stream(stream: WorkerStream) -> bool:
    """Whether the answer's body is a series of server-sent events."""
    return stream.headers.get("content-type", "").startswith("text/event-stream")


async def _relay_whole(stream: WorkerStream, reply: Reply) -> None:
    # Held back until complete, so that a worker's death is a clean 5xx and never half a JSON object.
    body = await read_whole(stream)
    if not body:
        raise WorkerBroken("The worker's answer is empty.")
    await reply.whole(stream.status, stream.headers, body)


async def read_whole(stream: WorkerStream) -> bytes:
    """The whole body of an answer. Raises: WorkerBroken, WorkerTimeout."""
    body = piece = await stream.read()
    if not piece:
        return body
    pieces = []
    while piece:
        pieces.append(piece)
        piece = await stream.read()
    return body if len(pieces) == 1 else b"".join(pieces)


async def _relay_events(
    stream: WorkerStream,
    reply: Reply,
    first: bytes,
    ends: tuple[bytes, ...],
    clock: Callable[[], float],
    on_gap: Callable[[float], None],
) -> None:
    cutter, chunk = _Cutter(), first
    events = cutter.add(chunk)
    while not events and not cutter.has_failed and (chunk := await stream.read()):
        events = cutter.add(chunk)
    if events:
        await reply.piece(stream.status, stream.headers, events)
    cutter.check()
    last_s = clock()

    def feed(chunk: bytes) -> bool:
        nonlocal last_s
        now_s = clock()
        # The mark of the stream's end is no token.
        if not chunk.startswith(ends):
            on_gap(now_s - last_s)
        last_s = now_s
        events = cutter.add(chunk)
        may_go_on = reply.push(events) if events else True
        if cutter.has_failed:
            cutter.check()
        return may_go_on

    while events and await stream.pump(feed):
        await reply.drain()
    if cutter.pending or not _last_event(reply.last_piece).startswith(ends):
        raise WorkerBroken("The worker's stream ended before it was done.")
    await reply.finish()


class _Cutter:
    """Cuts a stream into whole events: should the worker die inside one, an error event must not land in its middle."""

    def __init__(self) -> None:
        self.pending = b""
        """The beginning of an event."""
        self.has_failed = False
        """The worker has said so. vLLM goes on to say that the stream is done, in the words of one that went well."""

    def add(self, chunk: bytes) -> bytes:
        """The events that are whole now, up to the one that tells of a failure."""
        data = self.pending + chunk if self.pending else chunk
        cut = end_of_events(data)
        events, self.pending = (data, b"") if cut == len(data) else (data[:cut], data[cut:])
        if b"error" in events and (at := _find_error(events)) >= 0:
            self.has_failed = True
            return events[:at]
        return events

    def check(self) -> None:
        """Raises: WorkerBroken: it has failed."""
        if self.has_failed:
            raise WorkerBroken("The worker failed in the middle of its answer.")


def _find_error(events: bytes) -> int:
    """Where an event begins that tells of an engine's failure; -1 if none does. Text in an event has no line ends."""
    found = [0 if events.startswith(start) else events.find(b"\n" + start) + 1 or -1 for start in ERROR_STARTS]
    return min((at for at in found if at >= 0), default=-1)


def end_of_events(data: bytes) -> int:
    """Bytes up to and including the last blank line; 0 if there is none."""
    if data.endswith(b"\n\n"):
        return len(data)
    ends = [data.rfind(blank) + len(blank) for blank in (b"\n\n", b"\r\n\r\n") if blank in data]
    return max(ends, default=0)


def _last_event(events: bytes) -> bytes:
    """The last of whole events."""
    return events[end_of_events(events.rstrip(b"\r\n")) :]

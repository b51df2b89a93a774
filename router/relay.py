"""Carries decode's answer to the client, byte for byte, and notices when it is not whole."""

from router.reply import Reply
from router.worker_client import WorkerBroken, WorkerStream

DONE_EVENT = b"data: [DONE]"
# Enough of the end of a stream to hold DONE_EVENT and its blank line, whichever line ends are used.
TAIL_BYTES = len(DONE_EVENT) + 4


async def relay(stream: WorkerStream, reply: Reply) -> None:
    """Send the worker's answer on, as a stream if it is one.

    Raises:
        WorkerBroken: the answer ended early or was empty. Nothing has been sent, or a stream of whole events.
        WorkerTimeout: the same, by silence.
    """
    if stream.headers.get("content-type", "").startswith("text/event-stream"):
        await _relay_events(stream, reply)
    else:
        await _relay_whole(stream, reply)


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


async def _relay_events(stream: WorkerStream, reply: Reply) -> None:
    tail = pending = b""
    while chunk := await stream.read():
        pending = pending + chunk if pending else chunk
        # Only whole events leave: should the worker die inside one, the error event must not land in its middle.
        cut = _end_of_events(pending)
        if cut:
            events, pending = (pending, b"") if cut == len(pending) else (pending[:cut], pending[cut:])
            await reply.piece(stream.status, stream.headers, events)
            tail = events[-TAIL_BYTES:] if len(events) >= TAIL_BYTES else (tail + events)[-TAIL_BYTES:]
    if pending or DONE_EVENT not in tail:
        raise WorkerBroken("The worker's stream ended before it was done.")
    await reply.finish()


def _end_of_events(data: bytes) -> int:
    """Bytes up to and including the last blank line; 0 if there is none."""
    if data.endswith(b"\n\n"):
        return len(data)
    ends = [data.rfind(blank) + len(blank) for blank in (b"\n\n", b"\r\n\r\n") if blank in data]
    return max(ends, default=0)

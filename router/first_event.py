"""Looks at the start of a worker's stream, where an engine that has answered 200 may say that it refuses the request.

vLLM begins a stream before it checks a grammar or a sampling parameter against the model. What it finds then is the
first event. As long as nothing was sent on, the client can still have a proper status.
"""

from router.error_shapes import status_in
from router.relay import ERROR_STARTS, end_of_events
from router.worker_client import WorkerAnswer, WorkerStream

_LONGEST_START = max(map(len, ERROR_STARTS))


async def read_first(stream: WorkerStream) -> bytes | WorkerAnswer:
    """The first bytes of a stream, empty if it has none; or the refusal that it begins with.

    Raises: WorkerBroken, WorkerTimeout.
    """
    first = await stream.read()
    # A piece is nearly always a whole event; what is cut shorter can't be told yet.
    while first and len(first) < _LONGEST_START and (more := await stream.read()):
        first += more
    return await _read_refusal(stream, first) if first.startswith(ERROR_STARTS) else first


async def _read_refusal(stream: WorkerStream, start: bytes) -> WorkerAnswer:
    events = start
    while not end_of_events(events) and (more := await stream.read()):
        events += more
    lines = events.replace(b"\r\n", b"\n").partition(b"\n\n")[0].split(b"\n")
    body = b"\n".join(line[len(b"data:") :].strip() for line in lines if line.startswith(b"data:"))
    return WorkerAnswer(status_in(body), {"content-type": "application/json"}, body)

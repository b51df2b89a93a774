"""A stream that begins with an error is told from one that begins with an answer, however it is cut."""

import json

import pytest

from router.first_event import read_first
from router.worker_client import WorkerAnswer

ERROR = {"error": {"message": "no such grammar", "type": "BadRequestError", "param": None, "code": 400}}
OF_CHAT = b"data: " + json.dumps(ERROR).encode() + b"\n\ndata: [DONE]\n\n"
NAMED = b"event: error\r\ndata: " + json.dumps({"type": "error"} | ERROR).encode() + b"\r\n\r\n"
GOOD = b'data: {"id":"c","choices":[]}\n\n'


class CutStream:
    """A worker's stream that arrives in pieces of a size."""

    def __init__(self, body: bytes, size: int) -> None:
        self._pieces = [body[start : start + size] for start in range(0, len(body), size)]

    async def read(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    async def read_all(self) -> bytes:
        return b"".join(self._pieces)


SIZES = pytest.mark.parametrize("size", [1, 5, 19, 1000])


@SIZES
@pytest.mark.parametrize("body", [OF_CHAT, NAMED], ids=["chat", "named"])
async def test_an_error_is_read_whole_whatever_the_pieces(body: bytes, size: int) -> None:
    answer = await read_first(CutStream(body, size))  # type: ignore[arg-type]
    assert isinstance(answer, WorkerAnswer)
    assert answer.status == 400
    assert json.loads(answer.body)["error"] == ERROR["error"]


@SIZES
@pytest.mark.parametrize("body", [GOOD * 3, b": ping\n\n" + GOOD, b"data: [DONE]\n\n", b"data", b""])
async def test_of_an_answer_nothing_is_lost(body: bytes, size: int) -> None:
    stream = CutStream(body, size)
    first = await read_first(stream)  # type: ignore[arg-type]
    assert isinstance(first, bytes)
    assert first + await stream.read_all() == body


async def test_an_error_that_breaks_off_is_a_fault_of_the_worker() -> None:
    answer = await read_first(CutStream(b'data: {"error": {"code": 4', 1000))  # type: ignore[arg-type]
    assert isinstance(answer, WorkerAnswer)
    assert answer.status == 500

"""The load generator counts what goes wrong on a connection, and goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bench.router.cases import Case
from bench.router.chats import find_prompt, whole_answer
from bench.router.load import opened

CASE = Case("two", "two clients", 400, 16, False, 2)
PACED = Case("paced", "paced", 400, 16, False, 2, rate_rps=200.0)
SECONDS = 0.05


@asynccontextmanager
async def router(kind: str) -> AsyncIterator[int]:
    """The port of a router that is good, or ``breaks`` or ``garbles`` each answer, or ``closes`` after each."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                found = find_prompt(await reader.readexactly(length))
                assert found is not None
                body = whole_answer(16).filled(found.tag)
                last = b"connection: close\r\n" if kind == "closes" else b""
                answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n%b" % (len(body), last, body)
                writer.write({"breaks": answer[:-9], "garbles": b"gar\r\nbled\r\n\r\n"}.get(kind, answer))
                if kind in ("breaks", "closes"):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("case", [CASE, PACED], ids=["closed loop", "paced"])
@pytest.mark.parametrize("kind", ["good", "closes"])
async def test_good_answers_are_counted_also_where_each_has_a_connection_of_its_own(case: Case, kind: str) -> None:
    async with router(kind) as port, opened(port, case) as load:
        tally = await load.run(SECONDS)
    assert tally.num_good >= 2
    assert tally.errors == {}
    assert len(tally.ttft_s) == tally.num_good
    if case.rate_rps is not None:
        assert tally.num_good == case.rate_rps * SECONDS


@pytest.mark.parametrize(
    ("kind", "error"), [("breaks", "lost before the answer was complete"), ("garbles", "not HTTP")]
)
async def test_a_failed_connection_is_an_error_and_is_replaced(kind: str, error: str) -> None:
    async with router(kind) as port, opened(port, CASE) as load:
        tally = await load.run(SECONDS)
    assert tally.num_good == 0
    assert set(tally.errors) == {error}
    assert tally.errors[error] >= 2

"""A mock engine answers by its role, and counts legs that a real engine would serve wrongly."""

import asyncio
import json
from typing import cast

import pytest

from bench.router.chats import make_tag, request_body, whole_answer
from bench.router.engines import Engine, Role
from bench.router.leases import LeaseBook
from wire.handoff import HandoffRequest

TAG = make_tag(7)
ASK = HandoffRequest(handoff_id="a" * 32).model_dump(exclude_none=True)


class FakeTransport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.written = b"aborted"


def post(path: str, body: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


def chat(*, max_tokens: int = 16, is_stream: bool = False, tag: bytes = TAG, **more: object) -> bytes:
    body = request_body(prompt_bytes=400, max_tokens=max_tokens, is_stream=is_stream).filled(tag)
    return post("/v1/chat/completions", json.dumps(json.loads(body) | more).encode())


def exchange(role: Role, book: LeaseBook, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of an engine's answer. The request comes in two pieces, as large ones do."""
    engine, transport = Engine(role, book, 0.0), FakeTransport()
    engine.connection_made(cast(asyncio.BaseTransport, transport))
    engine.data_received(request[:50])
    engine.data_received(request[50:])
    head, _, body = transport.written.partition(b"\r\n\r\n")
    return head, body


def prefilled(book: LeaseBook) -> object:
    _, answer = exchange(Role.PREFILL, book, chat(max_tokens=1, kv_transfer_params=ASK))
    return json.loads(answer)["kv_transfer_params"]


async def test_a_handoff_goes_from_prefill_to_decode_and_the_answer_is_the_expected_one() -> None:
    book = LeaseBook()
    head, body = exchange(Role.DECODE, book, chat(kv_transfer_params=prefilled(book)))
    assert head.startswith(b"HTTP/1.1 200")
    assert body == whole_answer(16).filled(TAG)
    assert book.faults.total() == book.num_live == 0


async def test_a_decode_leg_without_its_handoff_is_answered_and_counted() -> None:
    book = LeaseBook()
    prefilled(book)
    _, body = exchange(Role.DECODE, book, chat())
    assert body == whole_answer(16).filled(TAG)
    assert (book.faults.no_handoff, book.num_live) == (1, 1)


async def test_an_engine_that_is_both_in_one_needs_no_handoff() -> None:
    book = LeaseBook()
    exchange(Role.WHOLE, book, chat())
    assert book.faults.total() == 0


@pytest.mark.parametrize("leg", [{"max_tokens": 16}, {"max_tokens": 1, "is_stream": True}], ids=["16 tokens", "stream"])
async def test_a_prefill_leg_that_would_do_decodes_work_is_counted(leg: dict[str, object]) -> None:
    book = LeaseBook()
    exchange(Role.PREFILL, book, chat(kv_transfer_params=ASK, **leg))  # type: ignore[arg-type]
    assert (book.faults.dirty_prefill, book.faults.total()) == (1, 1)


async def test_another_limit_left_on_the_prefill_leg_is_counted() -> None:
    book = LeaseBook()
    exchange(Role.PREFILL, book, chat(max_tokens=1, kv_transfer_params=ASK, max_completion_tokens=16))
    assert book.faults.dirty_prefill == 1


async def test_a_release_and_the_counts_have_their_routes() -> None:
    book = LeaseBook()
    prefilled(book)
    release = post("/tandem/release", json.dumps({"handoff_id": "a" * 32}).encode())
    assert json.loads(exchange(Role.PREFILL, book, release)[1]) == {"released": True}
    counts = json.loads(exchange(Role.CONTROL, book, b"GET /counts HTTP/1.1\r\nhost: a-name-of-some-length\r\n\r\n")[1])
    assert (counts["granted"], counts["released"], counts["live"]) == (1, 1, 0)


@pytest.mark.parametrize("body", [b"{}", b"not JSON"])
async def test_other_requests_are_refused_and_counted(body: bytes) -> None:
    book = LeaseBook()
    head, _ = exchange(Role.DECODE, book, post("/v1/chat/completions", body))
    assert head.startswith(b"HTTP/1.1 400")
    assert book.faults.bad_request == 1

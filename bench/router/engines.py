"""Mock engines: raw protocols on uvloop and httptools, many ports in one process, one lease book behind them all.

Started as ``python -m bench.router.engines``; prints one line of JSON with its ports, then serves until SIGTERM. Roles:

prefill   answers with one token and a handoff; knows ``/tandem/release``
decode    takes the handoff, answers whole or as a stream of one piece a token
whole     both in one: what a client reaches without any router
control   ``GET /counts`` tells what was counted, ``POST /reset`` starts at 0
"""

import argparse
import asyncio
import gc
import json
import re
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import cache, partial
from typing import cast

import httptools
import uvloop

from bench.router.chats import MODEL, Found, Template, find_prompt, prefill_answer, stream_pieces, whole_answer
from bench.router.leases import LeaseBook, find_params

CHAT_PATH = b"/v1/chat/completions"
_MAX_TOKENS = re.compile(rb'"max_(?:completion_)?tokens"\s*:\s*(\d+)')
_IS_STREAM = re.compile(rb'"stream"\s*:\s*true')
_SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_PREFILL_HEAD, _PREFILL_END = prefill_answer()


class Role(StrEnum):
    """What listens on a port."""

    PREFILL = "prefill"
    DECODE = "decode"
    WHOLE = "whole"
    CONTROL = "control"


class Engine(asyncio.Protocol):
    """One connection to one engine.

    Args:
        gap_s: seconds between two pieces of a stream.
    """

    def __init__(self, role: Role, book: LeaseBook, gap_s: float) -> None:
        self._role, self._book, self._gap_s = role, book, gap_s
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body = b"", b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._book.faults.bad_request += 1
            self._transport.abort()

    def on_message_begin(self) -> None:
        self._url, self._body = b"", b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, piece: bytes) -> None:
        self._body = self._body + piece if self._body else piece

    def on_message_complete(self) -> None:
        if self._url == CHAT_PATH and self._role is not Role.CONTROL:
            self._chat(self._body)
        else:
            self._small_route(self._url.decode("latin-1"))
        self._body = b""

    def _chat(self, body: bytes) -> None:
        found = find_prompt(body)
        if found is None:
            self._book.faults.bad_request += 1
            self._answer(b'{"error":{"message":"not a request of this benchmark"}}', status=b"400 Bad Request")
        elif self._role is Role.PREFILL:
            self._prefill(found)
        else:
            if self._role is Role.DECODE:
                self._book.read(find_params(found.rest), found.tag, found.prompt_bytes)
            self._decode(found)

    def _prefill(self, found: Found) -> None:
        limits = set(_MAX_TOKENS.findall(found.rest))
        if limits != {b"1"} or _IS_STREAM.search(found.rest):
            self._book.faults.dirty_prefill += 1
        params = self._book.grant(find_params(found.rest), found.tag, found.prompt_bytes)
        self._answer(_PREFILL_HEAD.filled(found.tag) + (params or b"null") + _PREFILL_END)

    def _decode(self, found: Found) -> None:
        # The largest, as a router may leave its prefill leg's limit beside the client's.
        max_tokens = max((int(limit) for limit in _MAX_TOKENS.findall(found.rest)), default=1)
        if _IS_STREAM.search(found.rest):
            self._transport.write(_SSE_HEAD)
            self._send_piece(found.tag, _pieces(max_tokens), 0, self._loop.time())
        else:
            self._answer(_whole(max_tokens).filled(found.tag))

    def _send_piece(self, tag: bytes, pieces: list[Template], index: int, start_s: float) -> None:
        data = pieces[index].filled(tag)
        is_last = index == len(pieces) - 1
        end = _LAST_CHUNK if is_last else b""
        self._transport.write(b"%x\r\n%b\r\n%b" % (len(data), data, end))
        self._timer = None
        if not is_last:
            # Each piece has its time from the start, so that a late timer moves none of those after it.
            due_s = start_s + (index + 1) * self._gap_s
            self._timer = self._loop.call_at(due_s, self._send_piece, tag, pieces, index + 1, start_s)

    def _small_route(self, url: str) -> None:
        if self._role is Role.CONTROL and url == "/reset":
            self._book.reset()
            self._answer(b"{}")
        elif self._role is Role.CONTROL and url == "/counts":
            self._answer(json.dumps(self._book.counts()).encode())
        elif self._role is Role.PREFILL and url == "/tandem/release":
            was_live = self._book.release(str(json.loads(self._body).get("handoff_id")))
            self._answer(b'{"released":%b}' % (b"true" if was_live else b"false"))
        elif url == "/health":
            self._answer(b"")
        elif url == "/v1/models":
            card = {"id": MODEL, "object": "model", "root": MODEL, "owned_by": "vllm", "max_model_len": 1 << 20}
            self._answer(json.dumps({"object": "list", "data": [card]}).encode())
        else:
            self._answer(b'{"detail":"Not Found"}', status=b"404 Not Found")

    def _answer(self, body: bytes, *, status: bytes = b"200 OK") -> None:
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)


@cache
def _pieces(num_tokens: int) -> list[Template]:
    return stream_pieces(num_tokens)


@cache
def _whole(max_tokens: int) -> Template:
    return whole_answer(max_tokens)


async def serve(
    *, num_prefills: int, num_decodes: int, gap_s: float, announce: Callable[[dict[str, list[int]]], None]
) -> None:
    """Listen on free ports of this machine, announce them by role, and serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    book, ports = LeaseBook(), {}
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    numbers = {Role.PREFILL: num_prefills, Role.DECODE: num_decodes, Role.WHOLE: 1, Role.CONTROL: 1}
    for role, number in numbers.items():
        servers = [
            await loop.create_server(partial(Engine, role, book, gap_s), "127.0.0.1", 0, backlog=1024)
            for _ in range(number)
        ]
        ports[role.value] = [server.sockets[0].getsockname()[1] for server in servers]
    # A collection in the middle of a round would look like a slow router.
    gc.freeze()
    gc.disable()
    announce(ports)
    await stopped.wait()


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(prog="python -m bench.router.engines", description=__doc__)
    parser.add_argument("--prefills", type=int, default=2)
    parser.add_argument("--decodes", type=int, default=2)
    parser.add_argument("--gap-s", type=float, default=0.01, help="seconds between two tokens of a stream")
    options = parser.parse_args()

    def announce(ports: dict[str, list[int]]) -> None:
        sys.stdout.write(json.dumps(ports) + "\n")
        sys.stdout.flush()

    uvloop.run(
        serve(num_prefills=options.prefills, num_decodes=options.decodes, gap_s=options.gap_s, announce=announce)
    )


if __name__ == "__main__":
    main()

"""Workers that take their time, at random, and remember when each leg of each request ended and how."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Receive, Scope, Send

from tests.integration.router.api_answers import MODEL
from wire.handoff import unsigned
from wire.versions import WIRE_VERSION

EVENT = b'data: {"choices":[{"index":0,"text":"x"}]}\n\n'
DONE = b"data: [DONE]\n\n"


class Left(Exception):
    """The router has closed the connection."""


@dataclass
class Leg:
    role: str
    request_id: str
    began_s: float
    ended_s: float | None = None


@dataclass
class SlowWorkers:
    """One prefill and one decode worker, as ASGI applications, and the leases between them.

    Args:
        longest_s: of a wait within a leg; most are much shorter.
    """

    moments: random.Random
    longest_s: float
    legs: list[Leg] = field(default_factory=list)
    leases: set[str] = field(default_factory=set)

    async def prefill(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve("prefill", scope, receive, send)

    async def decode(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve("decode", scope, receive, send)

    async def _serve(self, role: str, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = (await receive()).get("body", b"")
        path = scope["path"]
        if path == "/tandem/release":
            handoff_id = json.loads(body)["handoff_id"]
            was_live = handoff_id in self.leases
            self.leases.discard(handoff_id)
            await _answer(send, {"released": was_live})
        elif path == "/v1/models":
            await _answer(send, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        elif path != "/v1/completions":
            await _answer(send, {})
        else:
            leg = Leg(role, dict(scope["headers"])[b"x-request-id"].decode(), time.monotonic())
            self.legs.append(leg)
            try:
                await (self._prefill if role == "prefill" else self._decode)(json.loads(body), receive, send)
            except Left:
                pass
            finally:
                leg.ended_s = time.monotonic()

    async def _prefill(self, body: dict[str, Any], receive: Receive, send: Send) -> None:
        ask = body["kv_transfer_params"]
        await self._while_there(receive, self._wait())
        self.leases.add(ask["handoff_id"])
        handoff = unsigned(
            wire_version=WIRE_VERSION,
            handoff_id=ask["handoff_id"],
            num_readers=ask["num_readers"],
            remote_engine_id="slow",
            remote_request_id="r",
            remote_host="127.0.0.1",
            remote_port=5600,
            remote_block_ids=[1],
            remote_num_tokens=1,
            tp_size=1,
            prompt_digest="d" * 64,
            lease_s=30.0,
            lease_slot=1,
            lease_serial=1,
        )
        await _answer(send, {"choices": [], "kv_transfer_params": handoff.model_dump(mode="json")})

    async def _decode(self, body: dict[str, Any], receive: Receive, send: Send) -> None:
        await self._while_there(receive, self._wait())
        self.leases.discard(body["kv_transfer_params"]["handoff_id"])
        if not body.get("stream"):
            await self._while_there(receive, self._wait())
            await _answer(send, {"choices": []})
            return
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(self.moments.randrange(1, 20)):
            await send({"type": "http.response.body", "body": EVENT, "more_body": True})
            await self._while_there(receive, self._wait())
        await send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def _wait(self) -> None:
        await asyncio.sleep(self.longest_s * self.moments.random() ** 3)

    async def _while_there(self, receive: Receive, work: Awaitable[None]) -> None:
        """Raises: Left."""
        leaving, working = asyncio.ensure_future(receive()), asyncio.ensure_future(work)
        await asyncio.wait((leaving, working), return_when=asyncio.FIRST_COMPLETED)
        has_left = leaving.done() and leaving.result()["type"] == "http.disconnect"
        for task in (leaving, working):
            task.cancel()
        await asyncio.gather(leaving, working, return_exceptions=True)
        if has_left:
            raise Left


async def _answer(send: Send, value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})

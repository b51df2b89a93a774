"""Fake prefill and decode workers: strict about what they are sent, with leases that are counted and faults on demand.

``faults`` is a queue: each request takes the first one, if there is any.

    int              answer with that status and an error body
    (int, str)       the same with the header that refuses the handoff for that reason
    "hang"           say nothing until the client leaves
    "break"          close the connection without an answer
    "break_midway"   (decode) close it after the first piece of the body
    "break_in_event" (decode) close it inside an event
    "hold_midway"    (decode) wait for ``gate`` after the first piece
    "no_done"        (decode) end a stream without its last event
    "empty"          200 with an empty body
    "hold"           wait for ``gate``, then go on
    ("hold", fault)  wait for ``gate``, then that fault
    "hang_midway"    (decode) fall silent after the first piece
    "no_handoff"     (prefill) answer without kv_transfer_params
    "break_granted"  (prefill) grant the lease, then close the connection without an answer
    dict             (prefill) fields that replace those of the handoff; (decode) ``pieces`` of the stream
"""

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.integration.router.api_answers import DEFAULTS, LIMIT_FIELDS, MODEL, ONE_WORKER, Answer
from wire.handoff import HandoffKeys, HandoffRequest, KVHandoff, ReleaseRequest, unsigned
from wire.refusal import REFUSED_HEADER
from wire.versions import WIRE_VERSION

KEYS = HandoffKeys("a key that the router has not")
# A prefill leg with one of these would fail, stall or cost more on a real engine.
FORBIDDEN_ON_PREFILL = frozenset(
    {
        *("stream_options", "max_completion_tokens", "min_tokens", "n", "best_of", "use_beam_search", "logprobs"),
        *("top_logprobs", "prompt_logprobs", "stop", "stop_token_ids", "ignore_eos", "echo", "return_token_ids"),
        *("include", "store", "background", "enable_response_messages", "stop_sequences"),
    }
)
Fault = Any


@dataclass
class FakeWorker:
    """What both roles share: the record of requests, the faults, and noticing that the client left."""

    name: str
    token: str | None = None
    faults: deque[Fault] = field(default_factory=deque)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    num_aborted: int = 0
    is_healthy: bool = True
    models: list[str] = field(default_factory=lambda: [MODEL])
    refusal_headers: dict[str, str] = field(default_factory=dict)
    """Of every answer with a status that a fault demands."""

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    def app(self) -> ASGIApp:
        paths = ("/v1/chat/completions", "/v1/completions", *DEFAULTS, *ONE_WORKER)
        generating = [Route(path, _Generate(self), methods=["POST"]) for path in paths]
        app = Starlette(routes=[*generating, *self.routes()])

        async def with_transport(scope: Scope, receive: Receive, send: Send) -> None:
            # uvicorn's own request cycle: the only way to a connection that closes without any answer.
            cycle = getattr(send, "__self__", None)
            await app({**scope, "transport": getattr(cycle, "transport", None)}, receive, send)

        return with_transport

    def routes(self) -> list[Route]:
        # The last is only asked whether it is there: by it the router knows tandem's workers from stock vLLM.
        paths = {"/health": self._health, "/v1/models": self._models, "/tandem/status": self._health}
        return [Route(path, endpoint) for path, endpoint in paths.items()]

    async def _health(self, _: Request) -> Response:
        return Response(status_code=200 if self.is_healthy else 503)

    async def _models(self, _: Request) -> Response:
        cards = [{"id": model, "object": "model", "max_model_len": 8192} for model in self.models]
        return JSONResponse({"object": "list", "data": cards})

    async def answer(self, request: Request, body: dict[str, Any], fault: Fault, send: Send) -> None:
        raise NotImplementedError


class _Generate:
    """The generating endpoint of a fake, as raw ASGI so that it sees its client leave."""

    def __init__(self, worker: FakeWorker) -> None:
        self._worker = worker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        worker, request = self._worker, Request(scope, receive)
        worker.bodies.append(await request.body())
        worker.headers.append(dict(request.headers))
        fault = worker.faults.popleft() if worker.faults else None
        work = asyncio.create_task(self._answer(request, fault, send))
        left = asyncio.create_task(self._left(receive))
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            worker.num_aborted += 1
            work.cancel()
            await asyncio.wait((work,))
            return
        left.cancel()
        work.result()

    @staticmethod
    async def _left(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _answer(self, request: Request, fault: Fault, send: Send) -> None:
        worker = self._worker
        if worker.token is not None and request.headers.get("authorization") != f"Bearer {worker.token}":
            fault = 401
        if isinstance(fault, tuple) and fault[0] == "hold":
            await worker.gate.wait()
            fault = fault[1]
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "hold":
            await worker.gate.wait()
        if fault == "break":
            await break_connection(request)
        if isinstance(fault, int | tuple):
            status, reason = fault if isinstance(fault, tuple) else (fault, None)
            headers = worker.refusal_headers | ({} if reason is None else {REFUSED_HEADER: reason})
            body = {"error": {"message": f"{worker.name} says {status}", "type": "x", "param": None, "code": status}}
            await JSONResponse(body, status_code=status, headers=headers)(request.scope, request.receive, send)
        elif fault == "empty":
            await Response(b"", media_type="application/json")(request.scope, request.receive, send)
        elif request.url.path in ONE_WORKER:
            await JSONResponse(ONE_WORKER[request.url.path])(request.scope, request.receive, send)
        else:
            await worker.answer(request, await request.json(), fault, send)


async def break_connection(request: Request) -> None:
    """Closes the connection without an answer; the request then ends as its client is gone."""
    request.scope["transport"].abort()
    await asyncio.Event().wait()


@dataclass
class FakePrefill(FakeWorker):
    """Grants a lease for each good request; ``leases`` maps handoff id to the reads still promised."""

    leases: dict[str, int] = field(default_factory=dict)
    granted: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    release_statuses: deque[int] = field(default_factory=deque)
    grants_late: bool = False
    """The next release finds no lease, which comes into being just after it."""

    def routes(self) -> list[Route]:
        return [*super().routes(), Route("/tandem/release", self._release, methods=["POST"])]

    async def answer(self, request: Request, body: dict[str, Any], fault: Fault, send: Send) -> None:
        dirty = FORBIDDEN_ON_PREFILL & body.keys()
        if dirty or body[LIMIT_FIELDS.get(request.url.path, "max_tokens")] != 1 or body["stream"] is not False:
            error = {"message": f"not a clean prefill leg: {sorted(dirty)}", "type": "x", "param": None, "code": 400}
            await JSONResponse({"error": error}, status_code=400)(request.scope, request.receive, send)
            return
        ask = HandoffRequest.model_validate(body["kv_transfer_params"])
        self.leases[ask.handoff_id] = ask.num_readers
        self.granted.append(ask.handoff_id)
        if fault == "break_granted":
            await break_connection(request)
        answer: dict[str, Any] = {"id": "prefill", "choices": [{"text": "x"}], "usage": {"prompt_tokens": 300}}
        if fault != "no_handoff":
            answer["kv_transfer_params"] = self._handoff(ask, fault if isinstance(fault, dict) else {})
        await JSONResponse(answer)(request.scope, request.receive, send)

    def _handoff(self, ask: HandoffRequest, replaced: dict[str, Any]) -> dict[str, Any]:
        handoff = unsigned(
            wire_version=WIRE_VERSION,
            handoff_id=ask.handoff_id,
            num_readers=ask.num_readers,
            remote_engine_id=self.name,
            remote_request_id=f"cmpl-{ask.handoff_id}",
            remote_host="127.0.0.1",
            remote_port=5600,
            remote_block_ids=[7, 3, 5],
            remote_num_tokens=300,
            tp_size=1,
            prompt_digest="d" * 64,
            lease_s=30.0,
            lease_slot=5,
            lease_serial=17,
        )
        return KEYS.sign(handoff).model_dump() | replaced

    async def _release(self, request: Request) -> Response:
        if self.release_statuses and (status := self.release_statuses.popleft()) != 200:
            return Response(status_code=status)
        handoff_id = ReleaseRequest.model_validate_json(await request.body()).handoff_id
        self.released.append(handoff_id)
        was_live = self.leases.pop(handoff_id, None) is not None
        if self.grants_late:
            self.grants_late = False
            self.leases[handoff_id] = 1
        return JSONResponse({"released": was_live})


@dataclass
class FakeDecode(FakeWorker):
    """Reads each handoff off its prefill worker, once per choice, and answers with ``pieces`` or ``whole``."""

    prefills: dict[str, FakePrefill] = field(default_factory=dict)
    pieces: list[bytes] = field(
        default_factory=lambda: [
            b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"H\xc3\xa9"}}], "n": 1.0}\n\n',
            b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"llo"}}]}\n\ndata: {"usage":{"b":1,"a":2}}\n\n',
            b"data: [DONE]\n\n",
        ]
    )
    whole: bytes = b'{"id":"c", "choices":[{"message":{"content":"H\\u00e9llo"}}], "usage":{"b":1.0,"a":2}}'
    answers: dict[str, Answer] = field(default_factory=lambda: dict(DEFAULTS))
    """By path; those without one get ``pieces`` or ``whole``."""
    gap_s: float = 0.0
    """Between two pieces."""
    num_reads: int = 0
    num_started: int = 0

    async def answer(self, request: Request, body: dict[str, Any], fault: Fault, send: Send) -> None:
        self._read(body.get("kv_transfer_params"))
        self.num_started += 1
        is_stream = bool(body.get("stream"))
        content_type = b"text/event-stream; charset=utf-8" if is_stream else b"application/json"
        headers = [(b"content-type", content_type), (b"x-engine-secret", b"1"), (b"set-cookie", b"a=b")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        answer = self.answers.get(request.url.path, Answer(self.whole, tuple(self.pieces)))
        pieces = list(answer.pieces) if is_stream else [answer.whole[:10], answer.whole[10:]]
        if isinstance(fault, dict):
            pieces = fault["pieces"]
        if fault == "no_done":
            pieces.pop()
        for index, piece in enumerate(pieces):
            if index and self.gap_s:
                await asyncio.sleep(self.gap_s)
            data = piece[:20] if fault == "break_in_event" and index == 1 else piece
            await send({"type": "http.response.body", "body": data, "more_body": True})
            if (fault == "break_midway" and index == 0) or (fault == "break_in_event" and index == 1):
                # What was sent must leave before the connection goes.
                await asyncio.sleep(0.02)
                raise ConnectionAbortedError("a fault on demand")
            if fault == "hold_midway" and index == 0:
                await self.gate.wait()
            if fault == "hang_midway" and index == 0:
                await asyncio.Event().wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _read(self, params: dict[str, Any] | None) -> None:
        if params is None:
            return
        handoff = KVHandoff.model_validate(params)
        assert KEYS.verify(handoff)
        leases = self.prefills[handoff.remote_engine_id].leases
        assert leases.pop(handoff.handoff_id) == handoff.num_readers
        self.num_reads += handoff.num_readers

"""A handoff guard around a dummy of vLLM's server, called as ASGI servers call it."""

import json
from typing import Any

from prometheus_client import REGISTRY

from tests.unit.vllm_engine.factories import KEYS, PEER
from vllm_engine.handoff_guard import HandoffGuard, UsedIds
from wire.refusal import REFUSED_HEADER
from wire.worker import WorkerRole


class Reply:
    def __init__(self, messages: list[dict[str, Any]]) -> None:
        start, *rest = messages
        self.status: int = start["status"]
        self.headers: dict[bytes, bytes] = dict(start.get("headers", []))
        self.body = b"".join(message.get("body", b"") for message in rest)

    @property
    def refusal(self) -> str | None:
        """The reason that the router sees."""
        reason = self.headers.get(REFUSED_HEADER.encode())
        return reason.decode() if reason is not None else None


class Inner:
    """Stands in for vLLM: takes down what reaches it, and answers 200."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.messages: list[Any] = []
        self.scopes: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        body = b""
        while scope["type"] == "http":
            message = await receive()
            self.messages.append(message)
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"vLLM's answer"})


class Guarded:
    """One worker; ``registered`` are the peers that it may read from."""

    def __init__(self, role: WorkerRole = WorkerRole.DECODE, used: UsedIds | None = None) -> None:
        self.inner = Inner()
        self.registered = {(PEER.engine_id, PEER.host, PEER.port)}
        self.asked: list[tuple[str, str, int]] = []
        self.guard = HandoffGuard(
            self.inner, role=role, keys=KEYS, is_registered=self._is_registered, used=used or UsedIds()
        )

    async def _is_registered(self, engine_id: str, host: str, port: int) -> bool:
        self.asked.append((engine_id, host, port))
        return (engine_id, host, port) in self.registered

    async def call(self, *messages: dict[str, Any], path: str = "/v1/completions", **scope: Any) -> list[Any]:
        """Send these ASGI messages; what the server was told to send."""
        waiting, sent = list(messages), []

        async def receive() -> dict[str, Any]:
            return waiting.pop(0) if waiting else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.guard({"type": "http", "method": "POST", "path": path, "headers": []} | scope, receive, send)
        return sent

    async def post_bytes(self, body: bytes, **scope: Any) -> Reply:
        return Reply(await self.call({"type": "http.request", "body": body}, **scope))

    async def post(self, handoff_params: Any, **scope: Any) -> Reply:
        body = {"model": "nano", "prompt": [1, 2, 3], "kv_transfer_params": handoff_params}
        return await self.post_bytes(json.dumps(body).encode(), **scope)


def refusals_counted(reason: str) -> float:
    return REGISTRY.get_sample_value("tandem_handoffs_refused_total", {"reason": reason}) or 0.0

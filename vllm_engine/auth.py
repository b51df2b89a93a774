"""Only the cluster may use a worker: a bearer token on every route but health and metrics."""

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from wire.errors import Unauthorized

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/health", "/metrics", "/ping"})


class ClusterAuth:
    """ASGI middleware that answers 401 to a request without ``Authorization: Bearer <token>``."""

    def __init__(self, app: App, token: str) -> None:
        self._app = app
        self._expected = b"Bearer " + token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_known(scope):
            await self._app(scope, receive, send)
            return
        body = json.dumps(Unauthorized("a worker answers its router only: wrong or missing token").openai_body())
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": Unauthorized.status, "headers": headers})
        await send({"type": "http.response.body", "body": body.encode()})

    def _is_known(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, self._expected)

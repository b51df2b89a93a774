"""Refuses bad handoffs before vLLM sees the request: malformed, forged, foreign, of another version, used twice.

vLLM passes ``kv_transfer_params`` to the engine as they come. A handoff that reaches the engine is signed by this
deployment, names a registered address and was not used here before; the engine checks it against its prompt.
"""

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from prometheus_client import Counter
from pydantic import ValidationError

from vllm_engine.auth import App, Receive, Scope, Send
from wire.errors import BadRequest
from wire.handoff import HandoffKeys, HandoffRequest, KVHandoff
from wire.refusal import HTTP_STATUS, REFUSED_HEADER, Refusal
from wire.versions import WIRE_VERSION, may_pair
from wire.worker import WorkerRole

logger = logging.getLogger("vllm.tandem.worker")

FIELD = "kv_transfer_params"
Model = TypeVar("Model", HandoffRequest, KVHandoff)
# A lease can't live longer (KVHandoff.lease_s is renewed only while a request of ours waits), and a fleet has no more
# handoffs in flight.
MEMORY_TTL_S = 3600.0
MEMORY_LIMIT = 1 << 17

REFUSED = Counter("tandem_handoffs_refused", "requests refused unseen by the engine for their handoff", ["reason"])
for _reason in HTTP_STATUS:
    REFUSED.labels(_reason.value)


class _Body(msgspec.Struct):
    """The parts of a request that matter here; the rest is skipped unread."""

    kv_transfer_params: Any = None
    vllm_xargs: Any = None
    sampling_params: Any = None


class HandoffRefused(Exception):
    """The request must not reach the engine."""

    def __init__(self, reason: Refusal, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class UsedIds:
    """Handoff ids that were used, for ``MEMORY_TTL_S``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ids: OrderedDict[str, float] = OrderedDict()

    def add(self, handoff_id: str) -> bool:
        """Whether it is new."""
        now = self._clock()
        while self._ids and (len(self._ids) > MEMORY_LIMIT or next(iter(self._ids.values())) < now - MEMORY_TTL_S):
            self._ids.popitem(last=False)
        if handoff_id in self._ids:
            return False
        self._ids[handoff_id] = now
        return True


class HandoffGuard:
    """ASGI middleware over vLLM's routes.

    Args:
        is_registered: (engine id, host, port) -> whether that peer may be read from; may ask the router once more.
    """

    def __init__(
        self,
        app: App,
        *,
        role: WorkerRole,
        keys: HandoffKeys,
        is_registered: Callable[[str, str, int], Awaitable[bool]],
        used: UsedIds | None = None,
    ) -> None:
        self._app, self._role, self._keys, self._is_registered = app, role, keys, is_registered
        self._used = used or UsedIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"].startswith("/tandem/"):
            await self._app(scope, receive, send)
            return
        messages = []
        while True:
            message = await receive()
            messages.append(message)
            if message["type"] != "http.request" or not message.get("more_body", False):
                break
        try:
            await self._check(b"".join(message.get("body", b"") for message in messages))
        except HandoffRefused as e:
            await self._refuse(e, send)
            return

        async def replay() -> Any:
            return messages.pop(0) if messages else await receive()

        await self._app(scope, replay, send)

    async def _check(self, body: bytes) -> None:
        params = _params(body)
        if params is None:
            return
        if not isinstance(params, dict):
            raise HandoffRefused(Refusal.MALFORMED, f"{FIELD} must be an object")
        if self._role is WorkerRole.PREFILL:
            wish = _validated(HandoffRequest, params)
            handoff_id = wish.handoff_id
        else:
            handoff = _validated(KVHandoff, params)
            await self._check_handoff(handoff)
            handoff_id = handoff.handoff_id
        if not self._used.add(handoff_id):
            raise HandoffRefused(Refusal.REPLAYED, f"{FIELD}.handoff_id was used before")

    async def _check_handoff(self, handoff: KVHandoff) -> None:
        if not self._keys.verify(handoff):
            raise HandoffRefused(Refusal.SIGNATURE, f"{FIELD}.signature is not of this deployment")
        if not may_pair(handoff.wire_version, WIRE_VERSION):
            raise HandoffRefused(
                Refusal.VERSION,
                f"{FIELD}.wire_version is {handoff.wire_version}, which a worker of version {WIRE_VERSION} "
                "does not read",
            )
        if not await self._is_registered(handoff.remote_engine_id, handoff.remote_host, handoff.remote_port):
            raise HandoffRefused(Refusal.UNREGISTERED, f"{FIELD} names an engine that is not registered here")

    async def _refuse(self, refused: HandoffRefused, send: Send) -> None:
        logger.warning("request refused: %s", refused)
        REFUSED.labels(refused.reason.value).inc()
        body = json.dumps(
            BadRequest(str(refused), param=FIELD, code=f"handoff_{refused.reason}").openai_body()
        ).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (REFUSED_HEADER.encode(), refused.reason.value.encode()),
        ]
        await send({"type": "http.response.start", "status": HTTP_STATUS[refused.reason], "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _params(body: bytes) -> Any:
    """The handoff parameters of a request, None without any; a body that is no JSON object is vLLM's to refuse."""
    parts = _parts(body)
    if isinstance(parts.get("vllm_xargs"), dict) and FIELD in parts["vllm_xargs"]:
        raise HandoffRefused(Refusal.MALFORMED, f"vllm_xargs must not hold {FIELD}")
    sampling = parts.get("sampling_params")
    if isinstance(sampling, dict) and isinstance(sampling.get("extra_args"), dict) and FIELD in sampling["extra_args"]:
        raise HandoffRefused(Refusal.MALFORMED, f"sampling_params.extra_args must not hold {FIELD}")
    return parts.get(FIELD)


def _parts(body: bytes) -> dict[str, Any]:
    """The members of a request's body that can hold handoff parameters; empty for what is no JSON object."""
    try:
        return msgspec.to_builtins(msgspec.json.decode(body, type=_Body))
    except (msgspec.MsgspecError, RecursionError):
        pass  # stricter than the reader that vLLM's routes use, so what it refuses may still be read there
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _validated(model: type[Model], params: dict[str, Any]) -> Model:
    try:
        return model.model_validate(params)
    except ValidationError as e:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in e.errors()[:3])
        raise HandoffRefused(Refusal.MALFORMED, f"{FIELD}: {faults}") from None

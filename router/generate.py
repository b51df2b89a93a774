"""The endpoints that workers answer, as raw ASGI: read the body, run the pipeline while the client stays, report."""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from starlette.types import Receive, Scope, Send

from router.auth import ClientAuth
from router.client_protocol import LISTEN
from router.client_watch import ClientLeft, Listen, run_while_connected
from router.context import RequestContext
from router.deadline import TIMEOUT_HEADER
from router.endpoints import Endpoint, Stage
from router.key_usage import KeyUsage
from router.legs import WorkerRefused
from router.lifecycle import Lifecycle
from router.lifecycle_metrics import RefusalReason
from router.logs import RequestLog
from router.metrics import CLIENT_LEFT_STATUS, RouterMetrics
from router.pass_through import PassThrough
from router.pipeline import Pipeline
from router.reply import Reply
from router.timing import TIMING_HEADER, TimedReply
from router.token_usage import read_usage
from router.trace_context import TRACEPARENT, Tracer, trace_lines
from wire.errors import PayloadTooLarge, ServingError

# Long enough for any tracing scheme; the charset keeps it harmless in headers, logs and engine request ids.
SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

_READ_HEADERS = frozenset(
    name.encode()
    for name in ("authorization", "content-length", "x-api-key", "x-request-id", TIMING_HEADER, TIMEOUT_HEADER)
) | {TRACEPARENT.encode()}

logger = logging.getLogger(__name__)
request_log = RequestLog(__name__)


class ActiveRequests:
    """Counts the requests that have not unwound yet, so that a stopping router can wait for them."""

    def __init__(self) -> None:
        self.num = 0
        self._idle: asyncio.Future[None] | None = None

    def begin(self) -> None:
        self.num += 1

    def end(self) -> None:
        self.num -= 1
        if self.num == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def wait_idle(self, timeout_s: float) -> None:
        """Raises: TimeoutError."""
        if self.num:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait_for(self._idle, timeout_s)


class GenerateEndpoint:
    """One of them.

    Args:
        pipeline: what answers a request whose body has been read.
        new_request_id: for clients that send no usable ``X-Request-Id``.
        tracer: None: requests are not traced.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        pipeline: Pipeline | PassThrough,
        auth: ClientAuth,
        usage: KeyUsage,
        metrics: RouterMetrics,
        active: ActiveRequests,
        lifecycle: Lifecycle,
        max_body_bytes: int,
        clock: Callable[[], float],
        new_request_id: Callable[[], str],
        tracer: Tracer | None = None,
    ) -> None:
        self._endpoint, self._pipeline, self._auth, self._usage = endpoint, pipeline, auth, usage
        self._metrics, self._active = metrics, active
        self._drain, self._deadlines = lifecycle.drain, lifecycle.deadlines
        self._limit_s = lifecycle.deadlines.limit_s({})
        self._max_body_bytes, self._clock, self._new_request_id = max_body_bytes, clock, new_request_id
        self._tracer, self._new_context = tracer, RequestContext if tracer is None else tracer.begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = read_headers(scope)
        lines = trace_lines(scope) if TRACEPARENT in headers else ""
        ctx = self._new_context(self._request_id(headers), self._endpoint, self._clock(), lines)
        reply = (TimedReply if headers.get(TIMING_HEADER) == "1" else Reply)(ctx, send, self._clock)
        self._active.begin()
        try:
            await self._answer(ctx, headers, receive, reply, scope.get("extensions", {}).get(LISTEN))
        except (ClientLeft, asyncio.CancelledError) as error:
            ctx.status = CLIENT_LEFT_STATUS
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._active.end()
            if ctx.key_name is not None:
                self._usage.end(ctx.key_name, ctx.status)
                if ctx.status == 200 and ctx.stage is Stage.DONE:
                    self._usage.add_tokens(ctx.key_name, read_usage(reply.end))
            self._report(ctx)

    async def _answer(
        self,
        ctx: RequestContext,
        headers: Mapping[str, str],
        receive: Receive,
        reply: Reply,
        listen: Listen | None,
    ) -> None:
        try:
            if self._drain.is_on:
                self._metrics.lifecycle.count_refused(RefusalReason.DRAINING)
                raise self._drain.refuse()
            ctx.key_name = self._auth.check(headers)
            if ctx.key_name is not None:
                self._usage.begin(ctx.key_name)
            limit_s = self._limit_s if TIMEOUT_HEADER not in headers else self._deadlines.limit_s(headers)
            ctx.raw = await self._read_body(headers, receive)
            work = self._pipeline.run(ctx, reply)
            if limit_s is not None:
                work = self._deadlines.bounded(work, limit_s, ctx.start_s)
            await run_while_connected(work, receive, listen)
        except WorkerRefused as refusal:
            await reply.refuse(refusal.answer)
        except ServingError as error:
            logger.info("request %s failed in %s: %s", ctx.request_id, error.stage or ctx.stage.value, error.message)
            await reply.fail(error)
        except ClientLeft:
            raise
        except Exception:
            # A fault of ours: the client gets an answer, the server's log the traceback.
            await reply.fail(ServingError("Internal error.", stage=ctx.stage.value))
            raise

    async def _read_body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_body_bytes:
            raise self._too_large()
        pieces: list[bytes] = []
        num_bytes, has_more = 0, True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            pieces.append(message.get("body", b""))
            num_bytes += len(pieces[-1])
            if num_bytes > self._max_body_bytes:
                raise self._too_large()
            has_more = message.get("more_body", False)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"The request body is longer than {self._max_body_bytes} bytes.")

    def _request_id(self, headers: Mapping[str, str]) -> str:
        given = headers.get("x-request-id", "")
        return given if SANE_REQUEST_ID.fullmatch(given) else self._new_request_id()

    def _report(self, ctx: RequestContext) -> None:
        end_s = self._clock()
        self._metrics.observe_request(ctx, end_s)
        if self._tracer is not None:
            self._tracer.end(ctx, end_s)
        if request_log.is_enabled:
            request_log.write(_line(ctx, end_s))


def _line(ctx: RequestContext, end_s: float) -> str:
    first_s, prefill, decode = ctx.first_byte_s, ctx.prefill, ctx.decode
    return _line_form(tuple(ctx.step_s)) % (
        ctx.request_id,
        ctx.endpoint,
        ctx.status,
        "none" if ctx.plan is None else ctx.plan.route,
        ctx.stage,
        "-" if prefill is None else prefill.worker_id,
        "-" if decode is None else decode.worker_id,
        ctx.num_blocks,
        *ctx.step_s.values(),
        "-" if first_s is None else "%.4f" % (first_s - ctx.start_s),
        end_s - ctx.start_s,
    )


# One substitution for the whole line: f-strings with formats are the slowest thing in compiled code.
@lru_cache(maxsize=256)
def _line_form(stages: tuple[Stage, ...]) -> str:
    steps = "".join([f"{stage}=%.4f " for stage in stages])
    return f"request %s %s %s path=%s stage=%s prefill=%s decode=%s blocks=%s {steps}ttft=%s total=%.4f"


def read_headers(scope: Scope) -> dict[str, str]:
    """The headers that these endpoints read; of one that is sent twice, the first counts."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name in _READ_HEADERS:
            found.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return found

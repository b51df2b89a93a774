"""A trace of each request, by OpenTelemetry; the only file that speaks to it, imported only where traces are wanted.

    POST /v1/chat/completions   SERVER, below the client's span
    |- queue                    INTERNAL, only where the request had to wait in line
    |- prefill                  CLIENT, one for each attempt; the worker's own spans are below it
    `- decode                   CLIENT, the same, until the last byte; ``one_worker`` where nothing is generated

``router.span_attributes`` has what they say. The SDK gathers spans, drops what is too much, and delivers them from a
thread of its own.
"""

import asyncio
import logging
import threading
import time
from typing import NamedTuple

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace import Tracer as SpanFactory
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from router.config import ConfigError, RouterConfig
from router.context import RequestContext
from router.endpoints import Endpoint, Route, Stage
from router.legs import HandoffRefused, WorkerFailed
from router.metrics import CLIENT_LEFT_STATUS
from router.span_attributes import Attributes, endpoint_attributes, leg_attributes, request_attributes
from wire.errors import ServingError

SERVICE = "tandem-router"
# A collector that is there takes milliseconds. One that is not must leave the launcher's patience (kill_s, 10 s) whole.
FLUSH_LIMIT_S = 3.0
# An exporter without a collector complains at every attempt of every batch.
COMPLAINT_INTERVAL_S = 60.0
EXPORTER_LOG = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
# The stages that are spans.
KINDS = {Stage.QUEUE: SpanKind.INTERNAL, Stage.PREFILL: SpanKind.CLIENT, Stage.DECODE: SpanKind.CLIENT}
PROPAGATOR = TraceContextTextMapPropagator()

logger = logging.getLogger(__name__)


class OtelTracer:
    """``router.trace_context.Tracer`` over OpenTelemetry's SDK, whose own environment variables count too."""

    def __init__(self, provider: TracerProvider, *, scheme: str, host: str, port: int) -> None:
        self._provider, self._spans = provider, provider.get_tracer("tandem.router")
        server: Attributes = {"url.scheme": scheme, "server.address": host, "server.port": port}
        self._attributes = {endpoint: server | endpoint_attributes(endpoint) for endpoint in Endpoint}

    @classmethod
    def of(cls, config: RouterConfig) -> "OtelTracer":
        """Starts the SDK's thread; waits for no collector.

        Raises:
            ConfigError: one of the SDK's own variables can't be used.
        """
        try:
            # Sampling, sizes of batches, headers for the collector and more are the SDK's to read from its variables.
            provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=config.otlp_traces_endpoint)))
        except (ImportError, RuntimeError, ValueError) as error:
            raise ConfigError(f"otlp_traces_endpoint: OpenTelemetry can't be set up: {error}") from None
        logging.getLogger(EXPORTER_LOG).addFilter(_SELDOM)
        scheme = "http" if config.tls_cert_file is None else "https"
        return cls(provider, scheme=scheme, host=config.host, port=config.port)

    def begin(self, request_id: str, endpoint: Endpoint, start_s: float, trace_lines: str) -> "TracedContext":
        carrier = dict(line.split(": ", 1) for line in trace_lines.splitlines())
        start_ns = time.time_ns()
        root = self._spans.start_span(
            f"POST {endpoint.url_path}",
            PROPAGATOR.extract(carrier, Context()) if carrier else Context(),
            SpanKind.SERVER,
            {**self._attributes[endpoint], "tandem.request_id": request_id},
            start_time=start_ns,
        )
        return TracedContext(request_id, endpoint, start_s, root=root, spans=self._spans, start_ns=start_ns)

    def end(self, ctx: RequestContext, end_s: float) -> None:
        assert isinstance(ctx, TracedContext)
        ctx.end(end_s)

    async def aclose(self) -> None:
        # Should it take too long, the thread is left behind and ends with the process.
        closing = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, FLUSH_LIMIT_S)
        if closing.is_alive():
            logger.warning("the last spans could not be delivered within %g s", FLUSH_LIMIT_S)


class _Failure(NamedTuple):
    """What ended a step early."""

    type: str
    code: str | None = None
    worker_status: int = 0
    """Of the worker that said so; 0: none did."""


class TracedContext(RequestContext):
    """The record of a request that makes spans of what it is told.

    Their times are the record's own, so that they agree with log and metrics whatever becomes of the wall clock.
    """

    __slots__ = ("_failure", "_num_attempts", "_open", "_root", "_spans", "_start_ns", "_under_root")

    def __init__(
        self, request_id: str, endpoint: Endpoint, start_s: float, *, root: Span, spans: SpanFactory, start_ns: int
    ) -> None:
        super().__init__(request_id, endpoint, start_s)
        self._root, self._spans, self._start_ns = root, spans, start_ns
        self._under_root = set_span_in_context(root, Context())
        self._open: tuple[Stage, Span] | None = None
        """The span below the root that has not ended: one at a time."""
        self._failure: _Failure | None = None
        """The newest since a span below the root ended last."""
        self._num_attempts = 0
        self.trace_lines = _lines(self._under_root)

    def enter(self, stage: Stage, now_s: float) -> None:
        super().enter(stage, now_s)
        if not self._root.is_recording():
            return  # not sampled: the legs go out with the root's own context, which says so
        if stage is Stage.RELAY:
            if self._open is not None:
                self._open[1].add_event("relay", timestamp=self._wall_ns(now_s))
            return
        self._end_open(now_s)
        if stage is Stage.SELECT:
            self._num_attempts += 1
        if stage in KINDS:
            self._open_span(stage, KINDS[stage], now_s)

    def note_failure(self, error: ServingError) -> None:
        super().note_failure(error)
        status = error.worker_status if isinstance(error, WorkerFailed | HandoffRefused) else 0
        self._failure = _Failure(type(error).__name__, error.code, status)

    def note_refusal(self, status: int) -> None:
        self._failure = _Failure(str(status), worker_status=status)

    def end(self, end_s: float) -> None:
        """The request is over."""
        root, failure = self._root, self._failure
        if not root.is_recording():
            return
        self._end_open(end_s)
        root.set_attributes({**request_attributes(self), "tandem.num_retries": max(0, self._num_attempts - 1)})
        if failure is not None and failure.code is not None:
            root.set_attribute("tandem.error_code", failure.code)
        # What the client did wrong, or did not wait for, is no error. A stream that breaks has a good status.
        if self.status >= 500 or (self.status < 400 and self.stage is not Stage.DONE):
            root.set_status(StatusCode.ERROR)
            root.set_attribute("error.type", "unknown" if failure is None else failure.type)
        root.end(self._wall_ns(end_s))

    def _open_span(self, stage: Stage, kind: SpanKind, now_s: float) -> None:
        route = self.checked_plan().route
        name = route.value if route is Route.ONE_WORKER else stage.value
        span = self._spans.start_span(name, self._under_root, kind, start_time=self._wall_ns(now_s))
        self._open = stage, span
        if kind is SpanKind.CLIENT:
            self.trace_lines = _lines(set_span_in_context(span, Context()))

    def _end_open(self, now_s: float) -> None:
        failure, self._failure = self._failure, None
        if self._open is None:
            return
        (stage, span), self._open = self._open, None
        if stage is not Stage.QUEUE:
            self._describe_leg(span, stage, failure)
        if failure is not None:
            span.set_status(StatusCode.ERROR)
            span.set_attribute("error.type", failure.type)
        elif self.status == CLIENT_LEFT_STATUS:
            span.set_attribute("tandem.client_left", True)
        span.end(self._wall_ns(now_s))

    def _describe_leg(self, span: Span, leg: Stage, failure: _Failure | None) -> None:
        attributes = leg_attributes(self, self.prefill if leg is Stage.PREFILL else self.decode)
        attributes["tandem.attempt"] = self._num_attempts
        if failure is not None:
            status = failure.worker_status
        elif self.status == CLIENT_LEFT_STATUS:
            status = 0
        elif leg is Stage.PREFILL:
            status, attributes["tandem.num_blocks"] = self.prefill_status, self.num_blocks
        else:
            status = self.status  # passed on as it came
        if status:
            attributes["http.response.status_code"] = status
        span.set_attributes(attributes)

    def _wall_ns(self, now_s: float) -> int:
        return self._start_ns + round((now_s - self.start_s) * 1e9)


class _Seldom(logging.Filter):
    """Lets one record pass in ``COMPLAINT_INTERVAL_S``."""

    _next_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        is_due = record.created >= self._next_s
        if is_due:
            self._next_s = record.created + COMPLAINT_INTERVAL_S
        return is_due


_SELDOM = _Seldom()


def _resource() -> Resource:
    """What the environment says of this process, and a name where it has none."""
    found = Resource.create()
    is_named = not str(found.attributes.get(SERVICE_NAME, "unknown")).startswith("unknown")
    return found if is_named else found.merge(Resource({SERVICE_NAME: SERVICE}))


def _lines(context: Context) -> str:
    """The trace context in the form of ``router.trace_context.trace_lines``."""
    carrier: dict[str, str] = {}
    PROPAGATOR.inject(carrier, context)
    return "".join([f"{name}: {value}\r\n" for name, value in carrier.items()])

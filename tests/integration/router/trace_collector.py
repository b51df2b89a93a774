"""A collector of traces: takes them as real ones do, by OTLP over HTTP, and shows what it was sent."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.integration.router.serving import eventually

PATH = "/v1/traces"


@dataclass(frozen=True)
class Span:
    """What a test asks of a span; ids in hexadecimal, empty where there is none."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    start_ns: int
    end_ns: int
    is_error: bool
    attributes: Mapping[str, Any]
    events: Mapping[str, int]
    """Nanoseconds by name."""

    def __getitem__(self, key: str) -> Any:
        return self.attributes[key]


@dataclass
class Trace:
    """One request's: the span of all of it, and those below in the order in which they began."""

    root: Span
    steps: list[Span]

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.steps]


@dataclass
class Collector:
    """``raw`` are the bodies that came; ``status`` is what each is answered with."""

    raw: list[bytes] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    resources: list[Mapping[str, Any]] = field(default_factory=list)
    status: int = 200
    url: str = ""

    def app(self) -> Starlette:
        return Starlette(routes=[Route(PATH, self._take, methods=["POST"])])

    async def _take(self, request: Request) -> Response:
        body = await request.body()
        self.raw.append(body)
        assert request.headers["content-type"] == "application/x-protobuf"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(_values(resource.resource.attributes))
            self.spans += [_span(span) for scope in resource.scope_spans for span in scope.spans]
        return Response(status_code=self.status, media_type="application/x-protobuf")

    @property
    def roots(self) -> list[Span]:
        return [span for span in self.spans if span.kind == "SERVER"]

    async def trace(self, request_id: str) -> Trace:
        """That of the one request with this id; its root ends last, so all of it is there."""

        def found() -> list[Span]:
            return [span for span in self.roots if span["tandem.request_id"] == request_id]

        await eventually(found)
        [root] = found()
        steps = [span for span in self.spans if span.trace_id == root.trace_id and span is not root]
        return Trace(root, sorted(steps, key=lambda span: span.start_ns))


def _span(span: ProtoSpan) -> Span:
    return Span(
        name=span.name,
        kind=ProtoSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        state=span.trace_state,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        is_error=span.status.code == Status.STATUS_CODE_ERROR,
        attributes=_values(span.attributes),
        events={event.name: event.time_unix_nano for event in span.events},
    )


def _values(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "") for one in attributes}

"""What the router knows of traces without OpenTelemetry: a client's trace context, and whether there is a tracer.

A trace context crosses the router whether requests are traced here or not, so that the workers' spans find their trace.
The tracer itself is ``router.tracing``'s, which is imported only where one is configured.
"""

import re
from typing import Protocol

from starlette.types import Scope

from router.config import ConfigError, RouterConfig
from router.context import RequestContext
from router.endpoints import Endpoint

TRACEPARENT = "traceparent"
# W3C Trace Context: version, trace id, parent id, flags. Ids of zeros and the version ff are invalid. Later versions
# may be longer; until there is one, what is longer is taken for a fault.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# The least that W3C wants to be passed on, and the most members that it allows.
MAX_TRACESTATE_CHARS = 512
MAX_TRACESTATE_MEMBERS = 32
_MEMBER = re.compile(
    r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


class Tracer(Protocol):
    """Makes a trace of each request."""

    def begin(self, request_id: str, endpoint: Endpoint, start_s: float, trace_lines: str) -> RequestContext:
        """The context of a new request, which tells its trace of every step.

        Args:
            trace_lines: the client's trace context, as ``trace_lines`` makes them.
        """
        ...

    def end(self, ctx: RequestContext, end_s: float) -> None:
        """The request of a context that ``begin`` made is over, whichever way."""
        ...

    async def aclose(self) -> None:
        """Deliver what has not been delivered, within a few seconds."""
        ...


def make_tracer(config: RouterConfig) -> Tracer | None:
    """None: none is configured, and nothing of OpenTelemetry is imported.

    Raises:
        ConfigError: one is configured, but OpenTelemetry is not installed, or not with settings of its own as they are.
    """
    if config.otlp_traces_endpoint is None:
        return None
    try:
        from router.tracing import OtelTracer
    except ImportError as error:
        raise ConfigError(
            f"otlp_traces_endpoint: needs the extra otel (pip install 'tandem-serve[otel]'): {error}"
        ) from None
    return OtelTracer.of(config)


def trace_lines(scope: Scope) -> str:
    """The valid trace context of a request as header lines, each with its end; empty if there is none."""
    parents = [value for name, value in scope["headers"] if name == b"traceparent"]
    if len(parents) != 1:  # W3C: several are as good as none
        return ""
    parent = parents[0].decode("latin-1")
    if not _TRACEPARENT.fullmatch(parent):
        return ""
    states = [value.decode("latin-1") for name, value in scope["headers"] if name == b"tracestate"]
    state = ",".join(states)
    if not _is_tracestate(state):
        return f"{TRACEPARENT}: {parent}\r\n"
    return f"{TRACEPARENT}: {parent}\r\ntracestate: {state}\r\n"


def _is_tracestate(state: str) -> bool:
    """Whether it says something, and nothing that W3C doesn't allow; a fault in it leaves the traceparent valid."""
    if not state or len(state) > MAX_TRACESTATE_CHARS:
        return False
    members = [member.strip(" \t") for member in state.split(",")]
    given = [member for member in members if member]
    keys = {member.partition("=")[0] for member in given}
    return 0 < len(given) == len(keys) <= MAX_TRACESTATE_MEMBERS and all(map(_MEMBER.fullmatch, given))

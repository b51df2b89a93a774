"""The one record of a request that every step of the pipeline reads and fills."""

from dataclasses import dataclass, field
from typing import NamedTuple

from router.body import ClientBody
from router.endpoints import NO_MODEL, Endpoint, Route, Stage
from router.workers import Worker
from wire.errors import ServingError


class Plan(NamedTuple):
    """What the router has learnt from a valid body."""

    model: str | None
    """None: the client named none."""
    is_stream: bool
    num_choices: int
    max_tokens: int | None
    """The client's limit on output tokens; None: as many as fit."""
    route: Route
    reason: str
    """Why this route, from a fixed set of labels."""
    priority: int = 0
    """The client's wish, as vLLM has it: lower is earlier."""


@dataclass(slots=True)
class RequestContext:
    """State of one request, owned by its one task.

    Filled by the endpoint: ``request_id``, ``endpoint``, ``start_s``, ``trace_lines``, ``raw``, ``key_name``.
    Filled by admit: ``body``, ``plan``, ``model``, ``prefill_tokens``, ``decode_tokens``.
    Filled by the queue: ``prefill_held``, ``decode_held``.
    Filled by select: ``prefill``, and ``decode`` on the decode-only route.
    Filled by prefill: ``handoff_id`` (new each attempt), ``handoff_json``, ``prefill_status``, ``num_blocks``.
    Filled by decode: ``decode``, ``status``.
    Filled by relay: ``first_byte_s``, ``is_head_sent``, ``is_content_sent``.
    Every step begins with ``enter``; what ends one early is told to ``note_failure`` or ``note_refusal``.
    """

    request_id: str
    endpoint: Endpoint
    start_s: float
    """Monotonic, like every time here."""
    trace_lines: str = ""
    """Headers of trace context for the next leg, each with its line end."""
    raw: bytes = b""
    key_name: str | None = None
    """Of the client's API key; None: none are configured, or the client has none."""

    body: ClientBody | None = None
    plan: Plan | None = None
    model: str = NO_MODEL
    """The model that is asked for, once it is known to be served: its label in metrics."""
    prefill_tokens: int = 0
    """What the prompt is taken to cost (``router.token_estimate``)."""
    decode_tokens: int = 0
    """The same with what decode may come to make."""
    prefill_held: int = 0
    """What of that has been taken from ``router.admission`` and not given back."""
    decode_held: int = 0

    prefill: Worker | None = None
    decode: Worker | None = None

    handoff_id: str | None = None
    handoff_json: str | None = None
    prefill_status: int = 0
    """Of prefill's good answer."""
    num_blocks: int = 0

    status: int = 0
    """Status sent or about to be sent to the client; 499: it left first."""
    first_byte_s: float | None = None
    """Of the content: pings don't count."""
    is_head_sent: bool = False
    """The client has a status and headers. An error can only be an event of the stream from then on."""
    is_content_sent: bool = False
    """The client has a first byte of the answer. Nothing is tried once more from then on."""

    stage: Stage = Stage.ADMIT
    entered_s: float = 0.0
    """When ``stage`` began."""
    step_s: dict[Stage, float] = field(default_factory=dict)
    """Seconds in each stage that was left, over all attempts."""
    tried: dict[Stage, list[str]] = field(default_factory=dict)
    """Worker ids whose leg failed in an earlier attempt, by leg."""

    def __post_init__(self) -> None:
        self.entered_s = self.start_s

    def enter(self, stage: Stage, now_s: float) -> None:
        """The request is in ``stage`` from now on; the time since the last call was the stage's before."""
        before = self.stage
        self.step_s[before] = self.step_s.get(before, 0.0) + now_s - self.entered_s
        self.stage, self.entered_s = stage, now_s

    def note_failure(self, error: ServingError) -> None:
        """An attempt or the whole request has failed; may be told twice."""
        error.request_id, error.stage = self.request_id, error.stage or self.stage.value

    def note_refusal(self, status: int) -> None:
        """A worker has refused the client's request with ``status``: no failure, and of interest to a trace alone."""

    def checked_body(self) -> ClientBody:
        """The body, in steps that run after admit."""
        assert self.body is not None
        return self.body

    def checked_plan(self) -> Plan:
        """The plan, in steps that run after admit."""
        assert self.plan is not None
        return self.plan

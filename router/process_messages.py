"""What a router's processes say to each other: one JSON object a line, on a channel that they alone hold.

The parent hears from workers and tells its children; children serve clients and report. Each child learns all from its
channel, its configuration included, so nothing of it shows in the process list.
"""

import json
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter

from router.config import RouterConfig
from router.metric_sums import Family
from router.workers import BreakerState
from wire.worker import WorkerRegistration, WorkerRole, WorkerStatus


class Message(BaseModel):
    """Base of all."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkerNews(Message):
    """One worker as the parent knows it."""

    worker_id: str
    generation: str
    role: WorkerRole
    url: str
    model: str | None
    status: WorkerStatus
    registration: WorkerRegistration | None
    max_model_len: int | None
    other_models: tuple[str, ...]
    dialect: str
    told_engines: frozenset[str]
    is_suspect: bool
    silent_s: float = Field(description="since the parent heard of it last; clocks are not compared")


class Start(Message):
    """To a child, first: its configuration, as the parent found it once for all of them."""

    kind: Literal["start"] = "start"
    config: str = Field(repr=False, description="JSON; holds secrets")


class Workers(Message):
    """To a child: workers that something was heard of, and ids of those that are gone. The first one holds all."""

    kind: Literal["workers"] = "workers"
    heard: tuple[WorkerNews, ...]
    gone: tuple[str, ...] = ()
    has_been_whole: bool = Field(description="there has been a usable pair")


OrderName = Literal["report", "read_keys", "drain", "finish", "cut", "force"]


class Order(Message):
    """To a child. To say one twice does no harm.

    report: answer with a ``Report``
    read_keys: read the file of API keys again
    drain: take no new request, and say ``idle`` when there is none left
    finish: no process has requests any more: end
    cut: end without waiting for requests
    force: end without waiting for anything
    """

    kind: Literal["order"] = "order"
    name: OrderName


class State(Message):
    """From a child: it serves clients now; it has been told to drain and has no request left."""

    kind: Literal["state"] = "state"
    name: Literal["serving", "idle"]


class Suspect(Message):
    """From a child: it could not connect to this worker."""

    kind: Literal["suspect"] = "suspect"
    worker_id: str
    generation: str


class Load(NamedTuple):
    """What one process has on one worker, and what it thinks of it."""

    worker_id: str
    num_in_flight: int
    tokens_in_flight: int
    breaker: BreakerState


class Report(Message):
    """From a child: its metrics and its share of the load, when asked and once more at its end."""

    kind: Literal["report"] = "report"
    families: tuple[Family, ...]
    loads: tuple[Load, ...]


AnyMessage = Annotated[Start | Workers | Order | State | Suspect | Report, Field(discriminator="kind")]
_MESSAGES: TypeAdapter[AnyMessage] = TypeAdapter(AnyMessage)


def encode(message: Message) -> bytes:
    """One line."""
    # JSON escapes line ends inside strings, so the only one is the last byte.
    return message.model_dump_json().encode() + b"\n"


def decode(line: bytes) -> AnyMessage:
    """Raises: ValueError: it is not a message."""
    return _MESSAGES.validate_json(line)


def config_json(config: RouterConfig) -> str:
    """All of ``config``, secrets in clear, for ``RouterConfig.model_validate_json``."""
    return json.dumps(config.model_dump(), default=_plain)


def _plain(value: Any) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)

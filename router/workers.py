"""One worker as the router knows it."""

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from router.dialects import TANDEM, Dialect
from router.pairing import is_pair
from wire.worker import WorkerRegistration, WorkerRole, WorkerState, WorkerStatus


class BreakerState(StrEnum):
    """What a worker's breaker lets through: everything, nothing, one request, or nothing more while that one runs."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    PROBING = "probing"


@dataclass(slots=True, eq=False)
class Worker:
    """What is known of one worker.

    The registry alone changes identity and state; ``router.breakers`` the breaker; the pipeline the counts.
    """

    worker_id: str
    generation: str
    role: WorkerRole
    url: str
    model: str | None
    """Served model name; None: a static worker that has not answered yet."""
    status: WorkerStatus
    registration: WorkerRegistration | None = None
    """None: a static worker, which registers nothing."""
    max_model_len: int | None = None
    other_models: tuple[str, ...] = ()
    """Further names that a static worker lists: aliases, LoRA adapters. A registration holds the one name alone."""
    seen_s: float = 0.0
    is_suspect: bool = False
    """The router could not connect; cleared by the next heartbeat or good probe."""
    num_in_flight: int = 0
    tokens_in_flight: int = 0
    """What the legs on this worker that have not ended are taken to cost (``router.token_estimate``)."""
    picked_at: int = 0
    """Place in the sequence of picks; 0: never picked."""
    dialect: Dialect = TANDEM
    told_engines: frozenset[str] = frozenset()
    """Decode: the prefill engines that the answer to its last heartbeat let it read from. It refuses all others."""
    breaker: BreakerState = BreakerState.CLOSED
    breaker_end_s: float = inf
    """When OPEN or PROBING turns into HALF_OPEN by itself."""
    num_failures: int = 0
    """Of the worker's own making, in a row; above 0 whenever the breaker is not CLOSED."""
    num_trips: int = 0
    """How often the breaker has opened since it was CLOSED last."""

    @property
    def is_static(self) -> bool:
        return self.registration is None

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that requests to it may name."""
        return () if self.model is None else (self.model, *self.other_models)

    @property
    def is_usable(self) -> bool:
        """Can serve, by what it says and as far as it could be reached. Its breaker may still say no."""
        return self.status.state is WorkerState.READY and not self.is_suspect

    def may_read_from(self, prefill: "Worker") -> bool:
        """Whether this decode worker can take ``prefill``'s handoffs now.

        Where one of the two is static, nothing but model and dialect are known of it.
        """
        if prefill.registration is None or self.registration is None:
            return prefill.model == self.model and prefill.dialect is self.dialect
        is_told = prefill.registration.engine_id in self.told_engines
        return is_told and is_pair(prefill.registration, self.registration)

    def begin_leg(self, num_tokens: int) -> None:
        """One leg, of about ``num_tokens``, is in flight until ``end_leg``."""
        self.num_in_flight += 1
        self.tokens_in_flight += num_tokens

    def end_leg(self, num_tokens: int) -> None:
        self.num_in_flight -= 1
        self.tokens_in_flight -= num_tokens

"""One worker as the router knows it."""

from dataclasses import dataclass

from router.dialects import TANDEM, Dialect
from router.pairing import is_pair
from wire.worker import WorkerRegistration, WorkerRole, WorkerState, WorkerStatus


@dataclass(slots=True, eq=False)
class Worker:
    """What is known of one worker. The registry alone changes identity and state; the pipeline, the counts."""

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
    bytes_in_flight: int = 0
    """Bytes of request bodies whose leg on this worker has not ended."""
    picked_at: int = 0
    """Place in the sequence of picks; 0: never picked."""
    dialect: Dialect = TANDEM
    told_engines: frozenset[str] = frozenset()
    """Decode: the prefill engines that the answer to its last heartbeat let it read from. It refuses all others."""

    @property
    def is_static(self) -> bool:
        return self.registration is None

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that requests to it may name."""
        return () if self.model is None else (self.model, *self.other_models)

    @property
    def is_usable(self) -> bool:
        """May be given new requests."""
        return self.status.state is WorkerState.READY and not self.is_suspect

    def may_read_from(self, prefill: "Worker") -> bool:
        """Whether this decode worker can take ``prefill``'s handoffs now.

        Where one of the two is static, nothing but model and dialect are known of it.
        """
        if prefill.registration is None or self.registration is None:
            return prefill.model == self.model and prefill.dialect is self.dialect
        is_told = prefill.registration.engine_id in self.told_engines
        return is_told and is_pair(prefill.registration, self.registration)

    def begin_leg(self, num_bytes: int) -> None:
        """One leg, of ``num_bytes`` of request body, is in flight until ``end_leg``."""
        self.num_in_flight += 1
        self.bytes_in_flight += num_bytes

    def end_leg(self, num_bytes: int) -> None:
        self.num_in_flight -= 1
        self.bytes_in_flight -= num_bytes

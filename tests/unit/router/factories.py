"""Named values that the router's unit tests share."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from router.context import Plan, RequestContext
from router.endpoints import Endpoint, Route
from router.workers import Worker
from wire.versions import WIRE_VERSION
from wire.worker import WorkerHeartbeat, WorkerRegistration, WorkerRole, WorkerState, WorkerStatus

FINGERPRINT = MappingProxyType({"kv_dtype": "nvfp4", "max_model_len": "8192"})


class ManualClock:
    """A clock that moves only when told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class ManualTimer:
    """A call that ``ManualTimers`` will make."""

    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s, self.callback = due_s, callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualTimers:
    """Calls things later, by a clock that moves only when told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._timers: list[ManualTimer] = []

    @property
    def num_pending(self) -> int:
        return sum(not timer.is_cancelled for timer in self._timers)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(self.clock.now_s + delay_s, callback)
        self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Move the clock, and make each call that is due on the way, at its time."""
        end_s = self.clock.now_s + seconds
        while due := [timer for timer in self._timers if timer.due_s <= end_s and not timer.is_cancelled]:
            timer = min(due, key=lambda timer: timer.due_s)
            self._timers.remove(timer)
            self.clock.now_s = max(self.clock.now_s, timer.due_s)
            timer.callback()
        self.clock.now_s = end_s


def make_heartbeat(
    worker_id: str = "prefill-0",
    *,
    role: WorkerRole = WorkerRole.PREFILL,
    generation: str = "g1",
    url: str = "http://127.0.0.1:8100",
    model: str = "nano",
    state: WorkerState = WorkerState.READY,
    wire_version: int = WIRE_VERSION,
    fingerprint: Mapping[str, str] = FINGERPRINT,
) -> WorkerHeartbeat:
    """Of an engine that is named by worker and generation, with a side channel at an address of the worker's own."""
    registration = WorkerRegistration(
        worker_id=worker_id,
        generation=generation,
        role=role,
        url=url,
        model=model,
        max_model_len=8192,
        block_size=128,
        row_bytes=1000,
        wire_version=wire_version,
        engine_id=f"{worker_id}-{generation}",
        kv_host=f"{worker_id}.kv",
        kv_port=5600,
        fingerprint=dict(fingerprint),
    )
    return WorkerHeartbeat(registration=registration, status=WorkerStatus(state=state))


def make_worker(worker_id: str, role: WorkerRole = WorkerRole.PREFILL) -> Worker:
    return Worker(worker_id, "g1", role, f"http://{worker_id}", "nano", WorkerStatus(state=WorkerState.READY))


def make_context(
    *,
    route: Route = Route.PREFILL_DECODE,
    prefill_tokens: int = 10,
    decode_tokens: int = 20,
    priority: int = 0,
    key_name: str | None = None,
    start_s: float = 1000.0,
) -> RequestContext:
    """A request that has been read and waits for nothing yet."""
    ctx = RequestContext("request-1", Endpoint.CHAT, start_s)
    ctx.plan = Plan("nano", False, 1, None, route, "handoff", priority)
    ctx.prefill_tokens, ctx.decode_tokens, ctx.key_name = prefill_tokens, decode_tokens, key_name
    return ctx

"""Admission: a request starts when there is room for it on the workers that it needs, and waits in line until then.

Decode's room is asked for first and kept to the end; prefill's is given back when the prompt is computed. So a handoff
never waits here for decode while its lease runs. What is in flight and who is next is ``router.gate``'s and
``router.fair_queue``'s; this file has the waiting itself, its deadline, and what clients are told.
"""

import asyncio
from collections.abc import Callable

from router.config import RouterConfig
from router.context import Plan, RequestContext
from router.endpoints import Route, Stage
from router.fair_queue import Waiting
from router.gate import Gate
from router.lifecycle_metrics import LifecycleMetrics, RefusalReason
from router.pools import Pools
from router.timers import CallLater, Timer, call_later
from wire.errors import DeadlineExceeded, Overloaded
from wire.worker import WorkerRole

# While something waits, and nothing else may ask: how often it is looked whether workers fell silent or may be tried.
LOOK_INTERVAL_S = 0.5


class Admission:
    """The gates of both roles.

    A context's ``prefill_held`` and ``decode_held`` say what it has taken. Whoever calls ``try_enter`` or ``wait``
    calls ``leave`` in the end, also when ``wait`` raised or was cancelled.

    Args:
        pools: who can be used now; asked from time to time while something waits. It is also for the owner to call
            ``set_pools`` at each change.
        clock: monotonic seconds.
        call_later: calls back once, so many seconds from now.
    """

    def __init__(
        self,
        config: RouterConfig,
        *,
        pools: Callable[[], Pools],
        metrics: LifecycleMetrics,
        clock: Callable[[], float],
        call_later: CallLater = call_later,
    ) -> None:
        self._queue_timeout_s = config.queue_timeout_s
        self._pools, self._metrics = pools, metrics
        self._clock, self._call_later = clock, call_later
        self._look: Timer | None = None
        max_queued = config.max_queued_tokens
        self.prefill = Gate(
            WorkerRole.PREFILL,
            tokens_per_worker=config.prefill_tokens_per_worker,
            max_queued_tokens=max_queued,
            is_optional=config.no_prefill == "decode_only",
            clock=clock,
        )
        self.decode = Gate(
            WorkerRole.DECODE,
            tokens_per_worker=config.decode_tokens_per_worker,
            max_queued_tokens=max_queued,
            is_optional=False,
            clock=clock,
        )

    def set_pools(self, pools: Pools) -> None:
        """Workers came or went: there may be more room now, or less."""
        self.prefill.set_workers(len(pools.usable_prefills()))
        self.decode.set_workers(len(pools.usable(WorkerRole.DECODE)))

    def try_enter(self, ctx: RequestContext, plan: Plan) -> bool:
        """Whether there is room at once, which is then taken; false: ``wait``."""
        prefill, decode = self.prefill, self.decode
        if ctx.decode_tokens > decode.room:
            return False
        if plan.route is Route.PREFILL_DECODE:
            if ctx.prefill_tokens > prefill.room:
                return False
            prefill.room -= ctx.prefill_tokens
            ctx.prefill_held = ctx.prefill_tokens
        decode.room -= ctx.decode_tokens
        ctx.decode_held = ctx.decode_tokens
        return True

    async def wait(self, ctx: RequestContext) -> None:
        """Until there is room, which is then taken.

        Raises:
            Overloaded: too much waits already.
            DeadlineExceeded: there was no room in time.
        """

        def hold_decode() -> None:
            ctx.decode_held = ctx.decode_tokens

        def hold_prefill() -> None:
            ctx.prefill_held = ctx.prefill_tokens

        start_s = self._clock()
        ctx.enter(Stage.QUEUE, start_s)
        needs_prefill = ctx.checked_plan().route is Route.PREFILL_DECODE
        if needs_prefill and not self.prefill.has_workers:
            if not self.prefill.is_optional:
                return  # as at a gate without workers: it need not wait for decode to be told so
            needs_prefill = False
        await self._pass(self.decode, ctx, ctx.decode_tokens, hold_decode, start_s)
        if needs_prefill:
            await self._pass(self.prefill, ctx, ctx.prefill_tokens, hold_prefill, start_s)

    def end_prefill(self, ctx: RequestContext) -> None:
        """The prompt is computed, or will not be; may be called twice."""
        prefill = self.prefill
        prefill.room += ctx.prefill_held
        ctx.prefill_held = 0
        if prefill.room < 0:
            prefill.let_in()

    def enter_again(self, ctx: RequestContext) -> None:
        """The request starts once more, maybe on another route; it has been let in, so it doesn't wait again."""
        if ctx.checked_plan().route is not Route.PREFILL_DECODE:
            self.end_prefill(ctx)
        elif not ctx.prefill_held:
            self.prefill.room -= ctx.prefill_tokens
            ctx.prefill_held = ctx.prefill_tokens

    def leave(self, ctx: RequestContext) -> None:
        """The request is over; may be called twice."""
        if ctx.prefill_held:
            self.end_prefill(ctx)
        decode = self.decode
        decode.room += ctx.decode_held
        ctx.decode_held = 0
        if decode.room < 0:
            decode.let_in()

    async def _pass(
        self, gate: Gate, ctx: RequestContext, num_tokens: int, hold: Callable[[], None], start_s: float
    ) -> None:
        if gate.may_pass(num_tokens):
            gate.room -= num_tokens
            hold()
            return
        if not gate.may_wait(num_tokens):
            self._metrics.count_refused(RefusalReason.QUEUE_FULL)
            raise Overloaded(
                f"Too many requests wait for a {gate.role.value} worker.",
                code=RefusalReason.QUEUE_FULL,
                retry_after_s=gate.retry_after_s(),
            )
        began_s = self._clock()
        try:
            has_turn = await self._wait_turn(gate, ctx, num_tokens, hold, start_s)
        finally:
            self._metrics.observe_queue_wait(self._clock() - began_s)
        if not has_turn:
            self._metrics.count_refused(RefusalReason.QUEUE_TIMEOUT)
            raise DeadlineExceeded(
                f"No {gate.role.value} worker had room within {self._queue_timeout_s:g} s.",
                code=RefusalReason.QUEUE_TIMEOUT,
                retry_after_s=gate.retry_after_s(),
            )

    async def _wait_turn(
        self, gate: Gate, ctx: RequestContext, num_tokens: int, hold: Callable[[], None], start_s: float
    ) -> bool:
        """Whether the turn came before the time was up. However this ends, the request is no longer in the queue."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        def take_turn() -> None:
            # At once, not when the request wakes: should it be cancelled before, ``leave`` knows what to give back.
            hold()
            wake()

        waiting = Waiting(num_tokens, ctx.checked_plan().priority, ctx.key_name or "", take_turn)
        timer = None
        if self._queue_timeout_s:
            timer = self._call_later(start_s + self._queue_timeout_s - self._clock(), wake)
        gate.join(waiting)
        self._look_later()
        try:
            await woken
            return not waiting.is_queued
        finally:
            if timer is not None:
                timer.cancel()
            if waiting.is_queued:
                gate.leave(waiting)

    def _look_later(self) -> None:
        if self._look is None:
            self._look = self._call_later(LOOK_INTERVAL_S, self._look_at_pools)

    def _look_at_pools(self) -> None:
        self._look = None
        self.set_pools(self._pools())
        if self.prefill.num_waiting or self.decode.num_waiting:
            self._look_later()

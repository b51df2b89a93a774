"""The way of one request: admit, queue, select, prefill, decode, relay, over one context.

A cancellation may land at any await; whatever the way out, a handoff that decode has not read for sure is released.
"""

import asyncio
from asyncio import CancelledError
from collections.abc import Callable

from router.body import HandoffMissing
from router.context import Plan, RequestContext
from router.dialects import TANDEM
from router.endpoints import Route, Stage
from router.legs import (
    WORKER_FAULTS,
    HandoffRefused,
    Legs,
    WorkerFailed,
    WorkerRefused,
    WorkerUnavailable,
    check_decode,
)
from router.lifecycle import Lifecycle
from router.metrics import RouterMetrics
from router.plans import read_body
from router.pools import Pools
from router.registry import WorkerRegistry
from router.relay import relay
from router.release import Releaser, ReleaseReason, nixl_release, tandem_release
from router.reply import Reply
from router.select import Selector
from router.served import check_model
from router.token_estimate import estimate_tokens
from router.worker_client import WorkerBroken, WorkerUnreachable
from router.workers import Worker
from wire.errors import NoWorker, ServingError
from wire.worker import WorkerRole

BIG_BODY_BYTES = 1 << 20
RETRIES_PER_LEG = 1
PREFILL_RETRIES_ON = (WorkerUnreachable, WorkerBroken, WorkerFailed, HandoffRefused)
# Not on any 5xx: decode may have spent the whole generation, and a request that fells engines would fell a second one.
DECODE_RETRIES_ON = (WorkerUnreachable, WorkerBroken, WorkerUnavailable, HandoffRefused)


class Pipeline:
    """Serves requests with what the registry knows.

    Args:
        selectors: one for each role.
        clock: monotonic seconds.
        new_handoff_id: 32 hexadecimal digits, never the same twice.
    """

    def __init__(
        self,
        *,
        registry: WorkerRegistry,
        selectors: dict[WorkerRole, Selector],
        legs: Legs,
        releaser: Releaser,
        metrics: RouterMetrics,
        lifecycle: Lifecycle,
        clock: Callable[[], float],
        new_handoff_id: Callable[[], str],
    ) -> None:
        self._registry, self._selectors, self._legs = registry, selectors, legs
        self._releaser, self._metrics = releaser, metrics
        self._admission, self._pinger = lifecycle.admission, lifecycle.pinger
        self._breakers, self._retries = lifecycle.breakers, lifecycle.retries
        self._fallback = lifecycle.fallback
        self._clock, self._new_handoff_id = clock, new_handoff_id

    async def run(self, ctx: RequestContext, reply: Reply) -> None:
        """Answer the request whole.

        Raises:
            ServingError: the client must be told; nothing was sent, or a stream that has to end with an error event.
            WorkerRefused: the worker's 4xx is the answer.
        """
        plan = await self._admit(ctx)
        is_pinged = plan.is_stream and self._pinger.is_on
        if is_pinged:
            self._pinger.watch(reply, ctx.start_s)
        try:
            if not self._admission.try_enter(ctx, plan):
                await self._admission.wait(ctx)
            while True:
                try:
                    await self._attempt(ctx, reply)
                except ServingError as error:
                    self._note_failure(ctx, error)
                    if not self._may_retry(ctx, error) and not self._fallback.survive(ctx, error):
                        raise
                    self._admission.enter_again(ctx)
                else:
                    ctx.enter(Stage.DONE, self._clock())
                    return
        finally:
            self._admission.leave(ctx)
            if is_pinged:
                self._pinger.forget(reply)

    async def _attempt(self, ctx: RequestContext, reply: Reply) -> None:
        self._select(ctx)
        try:
            if ctx.prefill is not None:
                ctx.handoff_id = self._new_handoff_id()
                await self._prefill(ctx, ctx.prefill, ctx.handoff_id)
            await self._decode(ctx, reply)
        except BaseException as error:
            if ctx.prefill is not None and ctx.handoff_id is not None:
                self._release(ctx, ctx.prefill, ctx.handoff_id, error)
            self._breakers.end_probe(ctx.prefill if ctx.decode is None else ctx.decode)
            raise

    async def _admit(self, ctx: RequestContext) -> Plan:
        if len(ctx.raw) < BIG_BODY_BYTES:
            ctx.body, plan = read_body(ctx.endpoint, ctx.raw)
        else:
            # Seconds of work for the largest bodies, which the other clients' streams must not wait for.
            ctx.body, plan = await asyncio.to_thread(read_body, ctx.endpoint, ctx.raw)
        ctx.plan = plan
        ctx.model = check_model(self._registry.pools().models, ctx.endpoint, plan)
        self._retries.num_requests += 1
        ctx.prefill_tokens, ctx.decode_tokens = estimate_tokens(len(ctx.raw), plan)
        return plan

    def _select(self, ctx: RequestContext) -> None:
        ctx.enter(Stage.SELECT, self._clock())
        ctx.prefill = ctx.decode = ctx.handoff_json = None
        plan, pools = ctx.checked_plan(), self._registry.pools()
        # Decode is looked up first, though picked later: a prefill that nobody can use is not begun.
        if not pools.usable(WorkerRole.DECODE, plan.model):
            raise _no_worker(WorkerRole.DECODE)
        planned = plan
        if plan.route is Route.PREFILL_DECODE:
            ctx.prefill = self._pick_prefill(ctx, pools, plan.model)
            if ctx.prefill is None:
                plan = ctx.plan = self._fallback.without_prefill(plan)
            elif plan.num_choices > 1 and not ctx.prefill.dialect.has_readers:
                ctx.prefill = None
                plan = ctx.plan = plan._replace(route=Route.DECODE_ONLY, reason="several_readers")
        if plan is not planned:
            self._admission.end_prefill(ctx)
        if not ctx.tried or plan is not planned:
            self._metrics.count_path(plan.route, plan.reason)

    def _pick_prefill(self, ctx: RequestContext, pools: Pools, model: str | None) -> Worker | None:
        """None: there is none, and the request may do without."""
        tried = ctx.tried.get(Stage.PREFILL, ())
        worker = self._selectors[WorkerRole.PREFILL].select(pools.usable_prefills(model), ctx, avoid=tried)
        if worker is not None or self._fallback.is_allowed:
            return worker
        if pools.usable(WorkerRole.PREFILL, model):
            raise NoWorker("No prefill worker that pairs with a decode worker is ready.", code="no_worker")
        raise _no_worker(WorkerRole.PREFILL)

    def _pick_decode(self, ctx: RequestContext) -> Worker:
        pools, model = self._registry.pools(), ctx.checked_plan().model
        if ctx.prefill is None:
            candidates = pools.usable(WorkerRole.DECODE, model)
        else:
            candidates = pools.usable_decodes(ctx.prefill, model)
        worker = self._selectors[WorkerRole.DECODE].select(candidates, ctx, avoid=ctx.tried.get(Stage.DECODE, ()))
        if worker is None:
            raise _no_worker(WorkerRole.DECODE)
        return worker

    async def _prefill(self, ctx: RequestContext, worker: Worker, handoff_id: str) -> None:
        ctx.enter(Stage.PREFILL, self._clock())
        worker.begin_leg(ctx.prefill_tokens)
        if worker.num_failures:
            self._breakers.begin_leg(worker)
        try:
            await self._legs.prefill(ctx, worker, handoff_id)
        finally:
            worker.end_leg(ctx.prefill_tokens)
        if worker.num_failures:
            self._breakers.succeed(worker)
        self._admission.end_prefill(ctx)
        self._metrics.observe_prefill(self._clock() - ctx.entered_s, ctx.num_blocks)

    async def _decode(self, ctx: RequestContext, reply: Reply) -> None:
        ctx.enter(Stage.DECODE, self._clock())
        worker = ctx.decode = self._pick_decode(ctx)
        worker.begin_leg(ctx.decode_tokens)
        if worker.num_failures:
            self._breakers.begin_leg(worker)
        try:
            if ctx.checked_plan().is_stream:
                await self._stream(ctx, worker, reply)
            else:
                # Held back until complete, so that a worker's death is a clean 5xx and never half a JSON object.
                answer = await self._legs.decode_whole(ctx, worker)
                ctx.enter(Stage.RELAY, self._clock())
                await reply.whole(*answer)
        finally:
            worker.end_leg(ctx.decode_tokens)
        if worker.num_failures:
            self._breakers.succeed(worker)

    async def _stream(self, ctx: RequestContext, worker: Worker, reply: Reply) -> None:
        async with self._legs.decode_stream(ctx, worker) as stream:
            if ctx.handoff_json is not None:
                self._metrics.observe_handoff(self._clock() - ctx.entered_s)
            first = await check_decode(stream, worker)
            if worker.num_failures:
                self._breakers.end_probe(worker)
            now_s = self._clock()
            self._metrics.observe_first_decode(now_s - ctx.entered_s)
            ctx.enter(Stage.RELAY, now_s)
            on_gap = self._metrics.observe_itl
            await relay(stream, reply, first, ctx.endpoint.stream_ends, clock=self._clock, on_gap=on_gap)

    def _release(self, ctx: RequestContext, prefill: Worker, handoff_id: str, error: BaseException) -> None:
        """This attempt's handoff will not be read."""
        is_in_prefill = ctx.stage is Stage.PREFILL
        # Unreached, or refused as invalid: prefill has nothing to keep.
        if is_in_prefill and isinstance(error, WorkerUnreachable | WorkerRefused):
            return
        if prefill.dialect is TANDEM:
            release = tandem_release(prefill.url, handoff_id)
        elif ctx.handoff_json is None:
            return  # a stock engine drops what it computes when its client closes the connection
        else:
            decodes = self._registry.pools().usable_decodes(prefill)
            if not decodes:
                self._releaser.note_failure("no decode worker is there to tell the prefill worker")
                return
            release = nixl_release(decodes[0].url, ctx.handoff_json)
        self._releaser.release(release, _release_reason(ctx, error), look_again=is_in_prefill)

    def _note_failure(self, ctx: RequestContext, error: ServingError) -> None:
        ctx.note_failure(error)
        worker = ctx.prefill if ctx.stage is Stage.PREFILL else ctx.decode
        if worker is not None and isinstance(error, WorkerUnreachable):
            self._registry.suspect(worker)
        if worker is not None and isinstance(error, WORKER_FAULTS):
            self._breakers.fail(worker)
        if isinstance(error, HandoffRefused):
            self._metrics.count_handoff_refused(error.reason)
        if isinstance(error, HandoffMissing):
            self._metrics.count_prefill_without_handoff()

    def _may_retry(self, ctx: RequestContext, error: ServingError) -> bool:
        if ctx.is_content_sent:
            return False
        leg, curable = (
            (Stage.PREFILL, PREFILL_RETRIES_ON) if ctx.stage is Stage.PREFILL else (Stage.DECODE, DECODE_RETRIES_ON)
        )
        worker = ctx.prefill if leg is Stage.PREFILL else ctx.decode
        tried = ctx.tried.setdefault(leg, [])
        if worker is None or not isinstance(error, curable) or len(tried) >= RETRIES_PER_LEG:
            return False
        if not self._retries.take():
            self._metrics.lifecycle.count_retry_refused(leg)
            return False
        tried.append(worker.worker_id)
        self._metrics.count_retry(leg.value)
        return True


def _no_worker(role: WorkerRole) -> NoWorker:
    return NoWorker(f"No {role.value} worker is ready.", code="no_worker")


def _release_reason(ctx: RequestContext, error: BaseException) -> ReleaseReason:
    if isinstance(error, WorkerRefused):
        return ReleaseReason.DECODE_REFUSED
    if isinstance(error, HandoffRefused):
        return ReleaseReason.HANDOFF_REFUSED
    if isinstance(error, CancelledError):
        return ReleaseReason.ABANDONED
    return ReleaseReason.PREFILL_FAILED if ctx.stage is Stage.PREFILL else ReleaseReason.DECODE_FAILED

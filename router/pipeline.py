"""The way of one request: admit, select, prefill, decode, relay, over one context.

A cancellation may land at any await; whatever the way out, a handoff that decode has not read for sure is released.
"""

import asyncio
from asyncio import CancelledError
from collections.abc import Callable

from router.body import HandoffMissing
from router.context import RequestContext, Route, Stage
from router.dialects import TANDEM
from router.legs import HandoffRefused, Legs, WorkerFailed, WorkerRefused, WorkerUnavailable, check_decode
from router.metrics import RouterMetrics
from router.plans import read_body
from router.registry import WorkerRegistry
from router.relay import relay
from router.release import Releaser, ReleaseReason, nixl_release, tandem_release
from router.reply import Reply
from router.select import Selector
from router.served import check_model
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
        clock: Callable[[], float],
        new_handoff_id: Callable[[], str],
    ) -> None:
        self._registry, self._selectors, self._legs = registry, selectors, legs
        self._releaser, self._metrics = releaser, metrics
        self._clock, self._new_handoff_id = clock, new_handoff_id

    async def run(self, ctx: RequestContext, reply: Reply) -> None:
        """Answer the request whole.

        Raises:
            ServingError: the client must be told; nothing was sent, or a stream that has to end with an error event.
            WorkerRefused: the worker's 4xx is the answer.
        """
        await self._admit(ctx)
        while True:
            try:
                await self._attempt(ctx, reply)
            except ServingError as error:
                self._note_failure(ctx, error)
                if not self._may_retry(ctx, error):
                    raise
            else:
                ctx.enter(Stage.DONE, self._clock())
                return

    async def _attempt(self, ctx: RequestContext, reply: Reply) -> None:
        self._select(ctx)
        if ctx.prefill is None:
            await self._decode(ctx, reply)
            return
        handoff_id = ctx.handoff_id = self._new_handoff_id()
        try:
            await self._prefill(ctx, ctx.prefill, handoff_id)
            await self._decode(ctx, reply)
        except BaseException as error:
            self._release(ctx, ctx.prefill, handoff_id, error)
            raise

    async def _admit(self, ctx: RequestContext) -> None:
        if len(ctx.raw) < BIG_BODY_BYTES:
            ctx.body, plan = read_body(ctx.endpoint, ctx.raw)
        else:
            # Seconds of work for the largest bodies, which the other clients' streams must not wait for.
            ctx.body, plan = await asyncio.to_thread(read_body, ctx.endpoint, ctx.raw)
        ctx.plan = plan
        check_model(self._registry.pools().models, ctx.endpoint, plan)

    def _select(self, ctx: RequestContext) -> None:
        ctx.enter(Stage.SELECT, self._clock())
        ctx.prefill = ctx.decode = ctx.handoff_json = None
        # Decode is looked up first, though picked later: a prefill that nobody can use is not begun.
        if not self._registry.pools().usable(WorkerRole.DECODE, ctx.checked_plan().model):
            raise _no_worker(WorkerRole.DECODE)
        plan = ctx.checked_plan()
        if plan.route is Route.PREFILL_DECODE:
            ctx.prefill = self._pick_prefill(ctx)
            if plan.num_choices > 1 and not ctx.prefill.dialect.has_readers:
                ctx.prefill = None
                ctx.plan = plan = plan._replace(route=Route.DECODE_ONLY, reason="several_readers")
        if not ctx.tried:
            self._metrics.count_path(plan.route, plan.reason)

    def _pick_prefill(self, ctx: RequestContext) -> Worker:
        model, tried = ctx.checked_plan().model, ctx.tried.get(Stage.PREFILL, ())
        worker = self._selectors[WorkerRole.PREFILL].select(self._registry.pools().usable_prefills(model), avoid=tried)
        if worker is not None:
            return worker
        if self._registry.pools().usable(WorkerRole.PREFILL, model):
            raise NoWorker("No prefill worker that pairs with a decode worker is ready.", code="no_worker")
        raise _no_worker(WorkerRole.PREFILL)

    def _pick_decode(self, ctx: RequestContext) -> Worker:
        if ctx.prefill is None:
            candidates = self._registry.pools().usable(WorkerRole.DECODE, ctx.checked_plan().model)
        else:
            candidates = self._registry.pools().usable_decodes(ctx.prefill, ctx.checked_plan().model)
        worker = self._selectors[WorkerRole.DECODE].select(candidates, avoid=ctx.tried.get(Stage.DECODE, ()))
        if worker is None:
            raise _no_worker(WorkerRole.DECODE)
        return worker

    async def _prefill(self, ctx: RequestContext, worker: Worker, handoff_id: str) -> None:
        ctx.enter(Stage.PREFILL, self._clock())
        worker.begin_leg(ctx.num_prompt_bytes)
        try:
            await self._legs.prefill(ctx, worker, handoff_id)
        finally:
            worker.end_leg(ctx.num_prompt_bytes)
        self._metrics.observe_prefill(self._clock() - ctx.entered_s, ctx.num_blocks)

    async def _decode(self, ctx: RequestContext, reply: Reply) -> None:
        ctx.enter(Stage.DECODE, self._clock())
        worker = ctx.decode = self._pick_decode(ctx)
        worker.begin_leg(ctx.num_prompt_bytes)
        try:
            async with self._legs.decode(ctx, worker) as stream:
                first = await check_decode(stream, worker)
                ctx.enter(Stage.RELAY, self._clock())
                await relay(stream, reply, first, ctx.endpoint.stream_ends)
        finally:
            worker.end_leg(ctx.num_prompt_bytes)

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
        error.request_id, error.stage = ctx.request_id, error.stage or ctx.stage.value
        worker = ctx.prefill if ctx.stage is Stage.PREFILL else ctx.decode
        if worker is not None and isinstance(error, WorkerUnreachable):
            self._registry.suspect(worker)
        if isinstance(error, HandoffRefused):
            self._metrics.count_handoff_refused(error.reason)
        if isinstance(error, HandoffMissing):
            self._metrics.count_prefill_without_handoff()

    def _may_retry(self, ctx: RequestContext, error: ServingError) -> bool:
        if ctx.is_response_started:
            return False
        leg, curable = (
            (Stage.PREFILL, PREFILL_RETRIES_ON) if ctx.stage is Stage.PREFILL else (Stage.DECODE, DECODE_RETRIES_ON)
        )
        worker = ctx.prefill if leg is Stage.PREFILL else ctx.decode
        tried = ctx.tried.setdefault(leg, [])
        if worker is None or not isinstance(error, curable) or len(tried) >= RETRIES_PER_LEG:
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

"""Requests that one worker answers, without a handoff: embeddings, tokens of a text and back, how many there are.

A prefill worker where one serves the model: decode's process is busy with other clients' streams.
"""

import asyncio
from collections.abc import Callable

from router.context import RequestContext
from router.endpoints import Stage
from router.legs import WORKER_FAULTS, Legs, WorkerUnavailable
from router.lifecycle import Lifecycle
from router.metrics import RouterMetrics
from router.plans import read_body
from router.registry import WorkerRegistry
from router.reply import Reply
from router.select import Selector
from router.served import check_model
from router.token_estimate import estimate_tokens
from router.worker_client import WorkerBroken, WorkerUnreachable
from router.workers import Worker
from wire.errors import NoWorker, ServingError
from wire.worker import WorkerRole

RETRIES = 1
# Nothing is generated and nothing is kept, so that asking twice is harmless.
RETRIES_ON = (WorkerUnreachable, WorkerBroken, WorkerUnavailable)


class PassThrough:
    """Answers requests with what one worker says.

    Args:
        selector: for workers of both roles.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        registry: WorkerRegistry,
        selector: Selector,
        legs: Legs,
        metrics: RouterMetrics,
        lifecycle: Lifecycle,
        clock: Callable[[], float],
    ) -> None:
        self._registry, self._selector, self._legs = registry, selector, legs
        self._metrics, self._clock = metrics, clock
        self._breakers, self._retries = lifecycle.breakers, lifecycle.retries

    async def run(self, ctx: RequestContext, reply: Reply) -> None:
        """Answer the request whole. Raises: as ``Pipeline.run``."""
        # Seldom and of any size: never worth holding up the other clients' streams.
        ctx.body, plan = await asyncio.to_thread(read_body, ctx.endpoint, ctx.raw)
        ctx.plan = plan
        ctx.model = check_model(self._registry.pools().models, ctx.endpoint, plan)
        self._metrics.count_path(plan.route, plan.reason)
        self._retries.num_requests += 1
        ctx.prefill_tokens, _ = estimate_tokens(len(ctx.raw), plan)
        tried = ctx.tried.setdefault(Stage.DECODE, [])
        while True:
            ctx.enter(Stage.SELECT, self._clock())
            worker = ctx.decode = self._pick(ctx, plan.model, tried)
            try:
                await self._ask(ctx, worker, reply)
            except ServingError as error:
                ctx.note_failure(error)
                if isinstance(error, WorkerUnreachable):
                    self._registry.suspect(worker)
                if isinstance(error, WORKER_FAULTS):
                    self._breakers.fail(worker)
                if ctx.is_content_sent or not isinstance(error, RETRIES_ON) or len(tried) >= RETRIES:
                    raise
                if not self._retries.take():
                    self._metrics.lifecycle.count_retry_refused(Stage.DECODE)
                    raise
                tried.append(worker.worker_id)
            else:
                self._breakers.succeed(worker)
                ctx.enter(Stage.DONE, self._clock())
                return

    def _pick(self, ctx: RequestContext, model: str | None, tried: list[str]) -> Worker:
        pools = self._registry.pools()
        candidates = pools.usable(WorkerRole.PREFILL, model) or pools.usable(WorkerRole.DECODE, model)
        worker = self._selector.select(candidates, ctx, avoid=tried)
        if worker is None:
            raise NoWorker("No worker is ready.", code="no_worker", stage=Stage.SELECT.value)
        return worker

    async def _ask(self, ctx: RequestContext, worker: Worker, reply: Reply) -> None:
        ctx.enter(Stage.DECODE, self._clock())
        worker.begin_leg(ctx.prefill_tokens)
        self._breakers.begin_leg(worker)
        try:
            answer = await self._legs.decode_whole(ctx, worker)
            ctx.enter(Stage.RELAY, self._clock())
            await reply.whole(*answer)
        finally:
            worker.end_leg(ctx.prefill_tokens)
            self._breakers.end_probe(worker)

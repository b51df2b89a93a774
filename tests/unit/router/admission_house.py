"""An admission to test: one worker of each role, a clock that moves only when told, requests that take half of it."""

import asyncio
from typing import Any

from router.admission import Admission
from router.config import RouterConfig
from router.context import RequestContext
from router.key_usage import KeyUsage
from router.metrics import RouterMetrics
from router.pools import Pools
from router.workers import Worker
from tests.unit.router.factories import ManualTimers, make_context, make_worker
from wire.worker import WorkerRole

SETTINGS: dict[str, Any] = {
    "prefill_tokens_per_worker": 100,
    "decode_tokens_per_worker": 200,
    "max_queued_tokens": 1000,
    "queue_timeout_s": 30,
}


class House:
    """An admission with one worker of each role, and a clock that moves only when told."""

    def __init__(self, **settings: Any) -> None:
        self.timers = ManualTimers()
        self.workers = [make_worker("prefill-0"), make_worker("decode-0", WorkerRole.DECODE)]
        self.metrics = RouterMetrics(lambda: self.workers, lambda: 0, KeyUsage())
        self.admission = Admission(
            RouterConfig.model_validate(SETTINGS | settings),
            pools=self.pools,
            metrics=self.metrics.lifecycle,
            clock=self.timers.clock,
            call_later=self.timers.call_later,
        )
        self.metrics.lifecycle.gates += (self.admission.prefill, self.admission.decode)
        self.admission.set_pools(self.pools())

    def pools(self) -> Pools:
        return Pools(self.workers)

    def change(self, *workers: Worker) -> None:
        self.workers = list(workers)
        self.admission.set_pools(self.pools())

    async def enter(self, ctx: RequestContext) -> None:
        """As the pipeline does it, but for what follows."""
        try:
            if not self.admission.try_enter(ctx, ctx.checked_plan()):
                await self.admission.wait(ctx)
        except BaseException:
            self.admission.leave(ctx)
            raise

    def start(self, ctx: RequestContext) -> "asyncio.Task[None]":
        return asyncio.create_task(self.enter(ctx))

    def count(self, sample: str) -> float:
        lines = self.metrics.render().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(sample + " "))

    @property
    def is_empty(self) -> bool:
        gates = (self.admission.prefill, self.admission.decode)
        return all(gate.num_in_flight_tokens == gate.num_waiting == gate.num_waiting_tokens == 0 for gate in gates)


async def settle() -> None:
    """Until every task has gone as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


def full(**fields: Any) -> RequestContext:
    """A request that takes all of prefill and half of decode."""
    return make_context(prefill_tokens=100, decode_tokens=100, **fields)

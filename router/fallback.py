"""What becomes of a request that prefill can't serve: an error, or decode computes the prompt itself.

``strict`` (the default) keeps the promise that prompts are computed apart from decoding: without prefill there is no
service. ``decode_only`` keeps the service. Either way it is counted, and the change from one state to the other logged.
"""

import logging
from collections.abc import Callable, Sequence

from router.context import Plan, RequestContext
from router.endpoints import Route, Stage
from router.lifecycle_metrics import FallbackReason
from router.pools import Pools
from wire.errors import DeadlineExceeded, ServingError, UpstreamError
from wire.worker import WorkerRole

logger = logging.getLogger(__name__)


class PrefillFallback:
    """Turns requests into decode-only ones, where that is allowed.

    Args:
        on_survival: called for each request that was counted with prefill and goes on without.
    """

    def __init__(self, *, is_allowed: bool, on_survival: Callable[[FallbackReason], None]) -> None:
        self.is_allowed = is_allowed
        self._on_survival = on_survival
        self._is_without_prefill = False
        self.has_been_whole = False
        """There has been a usable pair."""

    def can_serve(self, missing: Sequence[WorkerRole]) -> bool:
        """Whether the service is ready while workers of these roles are missing.

        It begins with a usable pair, also where decode may do without prefill: a deployment that never gets a prefill
        worker must not look well. Once it has begun, it goes on.
        """
        return not missing or (self.is_allowed and self.has_been_whole and WorkerRole.DECODE not in missing)

    def note_pools(self, pools: Pools) -> None:
        """Workers came or went. Logs that prefill is back."""
        is_whole = bool(pools.usable_prefills())
        self.has_been_whole |= is_whole
        if self._is_without_prefill and is_whole:
            self._is_without_prefill = False
            logger.info("a prefill worker is there again: prompts are computed apart from decoding")

    def without_prefill(self, plan: Plan) -> Plan:
        """The plan of a request for which there is no prefill worker. It must be allowed."""
        if not self._is_without_prefill:
            self._is_without_prefill = True
            logger.warning("no prefill worker is ready: decode computes prompts itself")
        return _decode_only(plan, FallbackReason.NO_PREFILL)

    def survive(self, ctx: RequestContext, error: ServingError) -> bool:
        """The prefill leg failed and is not tried again. False: so has the request."""
        is_prefill_at_fault = ctx.stage is Stage.PREFILL and isinstance(error, UpstreamError | DeadlineExceeded)
        if not self.is_allowed or not is_prefill_at_fault:
            return False
        ctx.plan = _decode_only(ctx.checked_plan(), FallbackReason.PREFILL_FAILED)
        self._on_survival(FallbackReason.PREFILL_FAILED)
        return True


def _decode_only(plan: Plan, reason: FallbackReason) -> Plan:
    return plan._replace(route=Route.DECODE_ONLY, reason=reason.value)

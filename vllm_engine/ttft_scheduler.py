"""vLLM's scheduler with a waiting queue ordered for TTFT (``ttft_order``): named by ``--scheduler-cls``.

Nothing else of the scheduler changes; whether it schedules ahead of the device stays vLLM's choice.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from vllm_engine.ttft_order import Key, chunk_limit, order_key
from wire.prefill_queue import PREFILL_QUEUE_KEY, PrefillQueue

# How long a count of cached tokens is believed. To look up the blocks takes 1 us for each that is found (measured on a
# Xeon core), half a millisecond for a cached prompt of 64K tokens; one that is not cached is one look.
BELIEVED_S = 0.5
# Others wait for something else too, such as a grammar.
_READY = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


class TTFTQueue(RequestQueue):
    """Requests in the order of ``key``, which is asked once a step.

    vLLM puts back what it could not run by ``prepend``; here that is the same as adding.
    """

    def __init__(self, key: Callable[[Request], Key]) -> None:
        self._key = key
        self._requests: dict[str, Request] = {}
        self._order: list[Request] | None = None
        """The next one last; None: to be made."""

    def sort_anew(self) -> None:
        """Ask for keys again: they change with time."""
        self._order = None

    def _sorted(self) -> list[Request]:
        if self._order is None:
            self._order = sorted(self._requests.values(), key=self._key)
            self._order.reverse()  # not by sorted's own argument, which would turn equals round
        return self._order

    def add_request(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self._order = None

    def pop_request(self) -> Request:
        """Raises IndexError where there is none."""
        request = self._sorted().pop()
        del self._requests[request.request_id]
        return request

    def peek_request(self) -> Request:
        """Raises IndexError where there is none."""
        return self._sorted()[-1]

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        """Raises ValueError if it is not in the queue."""
        if self._requests.pop(request.request_id, None) is None:
            raise ValueError(f"{request.request_id} is not waiting")
        self._order = None

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._requests.pop(request.request_id, None)
        self._order = None

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return reversed(list(self._sorted()))


class _TTFT(Scheduler):
    """What both schedulers of vLLM get."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        additional: Any = self.vllm_config.additional_config
        self._max_age_s = PrefillQueue.model_validate(additional.get(PREFILL_QUEUE_KEY, {})).max_age_s
        self._counted: dict[str, tuple[float, int]] = {}
        """Of waiting requests: when their tokens were counted, and how many are left."""
        self.waiting = TTFTQueue(self._key)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """One step. vLLM goes through what is under computation first: in our order, and leaving room for shorter."""
        self._counted = {name: one for name, one in self._counted.items() if name in self.requests}
        self.waiting.sort_anew()
        self.running.sort(key=self._key)
        running_left = [self._tokens_left(request) for request in self.running]
        limit = chunk_limit(
            running_left=running_left,
            shorter_left=self._shorter_left(sum(running_left)),
            budget=self.max_num_scheduled_tokens,
        )
        config = self.scheduler_config
        usual = config.long_prefill_token_threshold
        if limit is not None:
            config.long_prefill_token_threshold = min(usual, limit) if usual > 0 else limit
        try:
            return super().schedule(*args, **kwargs)
        finally:
            config.long_prefill_token_threshold = usual

    def _shorter_left(self, running_left: int) -> list[int]:
        """Tokens left of each that vLLM can admit now and that belongs before the last of those under computation; of
        none that is less urgent than one of them, since a limit is for all.
        """
        if not self.running:
            return []
        last = max((request.priority, self._tokens_left(request)) for request in self.running)
        most_urgent = min(request.priority for request in self.running)
        num_places = self.max_num_active_reqs - len(self.running)
        num_free = self.kv_cache_manager.block_pool.get_num_free_blocks()
        num_free -= min(running_left, self.max_num_scheduled_tokens) // self.block_size
        shorter: list[int] = []
        for request in self.waiting:
            if request.status not in _READY:
                continue
            # vLLM admits nobody behind one that finds no place or no blocks for its whole prompt.
            num_places -= 1
            num_free -= -(-request.num_tokens // self.block_size)
            if num_places < 0 or num_free < 0:
                break
            left = self._tokens_left(request)
            if (request.priority, left) < last and request.priority <= most_urgent:
                shorter.append(left)
        return shorter

    def _key(self, request: Request) -> Key:
        left = self._tokens_left(request)
        return order_key(
            priority=request.priority,
            tokens_left=left,
            arrival_s=request.arrival_time,
            now_s=time.time(),  # the clock of ``arrival_time``
            max_age_s=self._max_age_s,
            has_begun=request.status == RequestStatus.PREEMPTED
            or (request.status == RequestStatus.RUNNING and left <= 1),
        )

    def _tokens_left(self, request: Request) -> int:
        if request.status == RequestStatus.RUNNING:
            return max(1, request.num_tokens - request.num_computed_tokens)
        now_s = time.monotonic()
        counted_s, left = self._counted.get(request.request_id, (-BELIEVED_S, 0))
        if now_s - counted_s >= BELIEVED_S:
            left = request.num_tokens - max(request.num_computed_tokens, self._num_cached(request))
            self._counted[request.request_id] = (now_s, left)
        return left

    def _num_cached(self, request: Request) -> int:
        """Tokens at the beginning of a prompt that this engine's prefix cache has now; the last token is never one."""
        if request.skip_reading_prefix_cache or not self.kv_cache_manager.enable_caching:
            return 0
        groups = list(range(len(self.kv_cache_config.kv_cache_groups)))
        pool, num_blocks = self.kv_cache_manager.block_pool, 0
        for block_hash in request.block_hashes[: (request.num_tokens - 1) // self.hash_block_size]:
            if pool.get_cached_block(block_hash, groups) is None:
                break
            num_blocks += 1
        return num_blocks * self.hash_block_size


class _AsyncTTFT(_TTFT, AsyncScheduler):
    """For an engine that schedules ahead of the device."""


def make_scheduler(*args: Any, **kwargs: Any) -> Scheduler:
    """The scheduler of an engine core, in vLLM's own terms; called as a scheduler's class is."""
    is_async = kwargs["vllm_config"].scheduler_config.async_scheduling
    return (_AsyncTTFT if is_async else _TTFT)(*args, **kwargs)

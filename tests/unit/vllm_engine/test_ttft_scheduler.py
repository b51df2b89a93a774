"""vLLM's own scheduler with our queue, without an engine: which prompts are in each step."""

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

with warnings.catch_warnings():  # vLLM's and torch's own
    warnings.simplefilter("ignore")
    from vllm.engine.arg_utils import EngineArgs
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus
    from vllm.v1.structured_output import StructuredOutputManager

    from vllm_engine.ttft_scheduler import TTFTQueue, make_scheduler

import torch

from msa_model.nano.checkpoint import build_checkpoint
from msa_model.nano.config import Form
from wire.prefill_queue import PREFILL_QUEUE_KEY

BUDGET, BLOCK = 1024, 128
_numbers = itertools.count()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("nano") / "nano"
    build_checkpoint(out, seed=0, dtype="float32", form=Form())
    return out


@pytest.fixture
def scheduler(checkpoint: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    queue = dict(getattr(request, "param", {}))
    policy, is_async = queue.pop("policy", "fcfs"), queue.pop("is_async", False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = EngineArgs(
            model=str(checkpoint),
            block_size=BLOCK,
            max_model_len=8192,
            max_num_batched_tokens=BUDGET,
            max_num_seqs=8,
            enforce_eager=True,
            enable_prefix_caching=True,
            scheduling_policy=policy,
            additional_config={PREFILL_QUEUE_KEY: {"max_age_s": 1000.0} | queue},
        ).create_engine_config()
        config.scheduler_config.async_scheduling = is_async  # which vLLM turns off on CPU
        init_none_hash(sha256)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=128, dtype=torch.uint8)
        config.cache_config.num_gpu_blocks = 512
        cache = KVCacheConfig(512, [], [KVCacheGroupSpec(["layer.0"], spec)])
        yield make_scheduler(
            vllm_config=config,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
            log_stats=False,
        )


def add(scheduler: Any, name: str, tokens: list[int], *, arrival_s: float | None = None, priority: int = 0) -> None:
    scheduler.add_request(
        Request(
            request_id=name,
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            arrival_time=arrival_s,
            priority=priority,
            block_hasher=get_request_block_hasher(BLOCK, sha256),
        )
    )


def prompt(num_tokens: int) -> list[int]:
    """Another one each time."""
    return [300 + next(_numbers) % 100] * num_tokens


def step(scheduler: Any) -> dict[str, int]:
    """Tokens of each request in the next step, which is then over."""
    output = scheduler.schedule()
    names = list(output.num_scheduled_tokens)
    sampled = [
        [] if scheduler.requests[name].num_computed_tokens < scheduler.requests[name].num_prompt_tokens else [7]
        for name in names
    ]
    order = {name: number for number, name in enumerate(names)}
    scheduler.update_from_output(output, ModelRunnerOutput(names, order, sampled))
    return dict(output.num_scheduled_tokens)


def test_the_shortest_of_those_that_wait_are_in_the_first_step(scheduler: Any) -> None:
    for name, num_tokens in (("long", 3000), ("short", 100), ("middle", 600)):
        add(scheduler, name, prompt(num_tokens))
    assert step(scheduler) == {"short": 100, "middle": 600, "long": BUDGET - 700}


def test_a_short_prompt_that_comes_later_is_in_the_very_next_step(scheduler: Any) -> None:
    add(scheduler, "long", prompt(2900))
    assert step(scheduler) == {"long": BUDGET}
    add(scheduler, "short", prompt(100))
    assert step(scheduler) == {"long": BUDGET - 100, "short": 100}
    assert step(scheduler) == {"long": 2900 - 2 * BUDGET + 100}


def test_a_long_prompt_keeps_half_of_each_step_whatever_comes(scheduler: Any) -> None:
    add(scheduler, "long", prompt(3000))
    step(scheduler)
    for number in range(6):
        add(scheduler, f"short {number}", prompt(500))
    assert step(scheduler)["long"] == BUDGET // 2


def test_a_short_prompt_does_not_wait_for_any_of_several_under_computation(scheduler: Any) -> None:
    for name, num_tokens in (("long", 6000), ("other", 4000)):
        add(scheduler, name, prompt(num_tokens))
        step(scheduler)
    add(scheduler, "short", prompt(100))
    assert step(scheduler) == {"other": (BUDGET - 100) // 2, "long": (BUDGET - 100) // 2, "short": 100}


def test_the_shorter_of_two_under_computation_ends_first(scheduler: Any) -> None:
    add(scheduler, "long", prompt(6000))
    step(scheduler)
    add(scheduler, "other", prompt(2000))
    assert step(scheduler) == {"long": BUDGET // 2, "other": BUDGET // 2}
    assert step(scheduler) == {"other": BUDGET}
    assert step(scheduler) == {"other": 2000 - BUDGET * 3 // 2, "long": BUDGET * 5 // 2 - 2000}


@pytest.mark.parametrize("scheduler", [{"max_age_s": 2.0}], indirect=True)
def test_under_computation_too_an_old_prompt_comes_before_shorter_ones(scheduler: Any) -> None:
    add(scheduler, "old", prompt(6000), arrival_s=1.0)
    step(scheduler)
    add(scheduler, "other", prompt(2000))
    step(scheduler)
    assert step(scheduler) == {"old": BUDGET}


def test_no_room_is_left_for_a_prompt_that_can_not_begin(scheduler: Any) -> None:
    add(scheduler, "long", prompt(4000))
    step(scheduler)
    add(scheduler, "short", prompt(100))
    scheduler.max_num_active_reqs = 1
    assert step(scheduler) == {"long": BUDGET}
    scheduler.max_num_active_reqs = 8
    pool = scheduler.kv_cache_manager.block_pool
    blocks = pool.get_new_blocks(pool.get_num_free_blocks() - BUDGET // BLOCK)
    assert step(scheduler) == {"long": BUDGET}, "nor for one whose blocks would not fit"
    pool.free_blocks(blocks)
    assert "short" in step(scheduler)


def test_a_prompt_that_lost_its_blocks_goes_on_before_shorter_ones(scheduler: Any) -> None:
    add(scheduler, "long", prompt(3000))
    step(scheduler)
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    add(scheduler, "short", prompt(100))
    assert step(scheduler) == {"long": BUDGET}


def test_what_the_cache_has_does_not_count(scheduler: Any) -> None:
    known = prompt(3000)
    add(scheduler, "first", known)
    while step(scheduler):
        pass
    add(scheduler, "unknown", prompt(600))
    add(scheduler, "known", [*known, *prompt(10)])
    first = next(iter(step(scheduler).items()))
    assert first == ("known", 3010 - 3000 // BLOCK * BLOCK)


@pytest.mark.parametrize("scheduler", [{"max_age_s": 0.0}], indirect=True)
def test_without_patience_prompts_go_in_the_order_of_arrival(scheduler: Any) -> None:
    add(scheduler, "long", prompt(3000), arrival_s=1.0)
    add(scheduler, "short", prompt(100), arrival_s=2.0)
    assert step(scheduler) == {"long": BUDGET}


def test_who_has_waited_too_long_comes_first(scheduler: Any) -> None:
    add(scheduler, "old", prompt(2000), arrival_s=1.0)
    add(scheduler, "short", prompt(100))
    assert step(scheduler) == {"old": BUDGET}


@pytest.mark.parametrize("scheduler", [{"policy": "priority"}], indirect=True)
def test_priorities_keep_their_meaning(scheduler: Any) -> None:
    add(scheduler, "short", prompt(100), priority=1)
    add(scheduler, "urgent", prompt(2000), priority=0)
    assert step(scheduler) == {"urgent": BUDGET}
    assert step(scheduler) == {"urgent": 2000 - BUDGET, "short": 2 * BUDGET - 2000}, "nor is it left room before"


@pytest.mark.parametrize("scheduler", [{"policy": "priority"}], indirect=True)
def test_an_urgent_prompt_under_computation_leaves_no_room_to_less_urgent_ones(scheduler: Any) -> None:
    add(scheduler, "late", prompt(4000), priority=1)
    step(scheduler)
    add(scheduler, "urgent", prompt(4000), priority=0)
    assert step(scheduler) == {"late": BUDGET // 2, "urgent": BUDGET // 2}
    add(scheduler, "short", prompt(100), priority=1)
    assert step(scheduler) == {"urgent": BUDGET}


def test_a_request_that_is_aborted_while_it_waits_is_gone(scheduler: Any) -> None:
    add(scheduler, "one", prompt(100))
    add(scheduler, "other", prompt(200))
    scheduler.finish_requests("one", RequestStatus.FINISHED_ABORTED)
    assert step(scheduler) == {"other": 200}


@pytest.mark.parametrize("scheduler", [{"is_async": True}], indirect=True)
def test_an_engine_that_schedules_ahead_goes_on_doing_so(scheduler: Any) -> None:
    assert isinstance(scheduler, AsyncScheduler)


@given(st.lists(st.tuples(st.sampled_from(["add", "prepend", "pop", "remove"]), st.integers(0, 9)), max_size=40))
def test_a_queue_gives_each_request_once_in_order_and_equals_as_they_came(moves: list[tuple[str, int]]) -> None:
    queue, there = TTFTQueue(lambda request: (0, 0, float(request.priority), 0.0)), list[Any]()
    for number, (move, value) in enumerate(moves):
        if move in ("add", "prepend"):
            there.append(SimpleNamespace(request_id=str(number), priority=value % 3))
            getattr(queue, f"{move}_request")(there[-1])
        elif there:
            one = min(there, key=lambda request: request.priority) if move == "pop" else there[value % len(there)]
            there.remove(one)
            if move == "pop":
                assert queue.pop_request() is one
            else:
                queue.remove_requests({one.request_id: one}.values())
        assert list(queue) == sorted(there, key=lambda request: request.priority)
        assert len(queue) == len(there)

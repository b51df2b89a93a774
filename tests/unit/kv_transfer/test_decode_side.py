"""Which handoffs decode takes, what it pulls for them, and what prefill is told at each exit."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from kv_transfer.connector_stats import RowConnectorStats
from kv_transfer.decode_side import DecodeSide
from kv_transfer.step import PeerRows, Pull, StepMetadata
from tests.unit.kv_transfer.factories import BLOCK, ENGINE, KEYS, Clock, handoff, prompt, request
from tests.unit.kv_transfer.peers import RETRY_S, LaterExecutor, Network, peer, peer_book
from wire.handoff import KVHandoff

NEXT_LIFE = "prefill-0-life2"


class Courier:
    """Takes down what is kept and released."""

    def __init__(self) -> None:
        self.kept: dict[str, KVHandoff] = {}
        self.released: list[tuple[str, str]] = []

    def keep(self, request_id: str, kept: KVHandoff) -> None:
        self.kept[request_id] = kept

    def done(self, request_id: str) -> None:
        self.kept.pop(request_id, None)

    def release(self, released: KVHandoff, reader: str) -> None:
        self.released.append((released.handoff_id, reader))


class Scene:
    """One decode engine's scheduler, without vLLM around it."""

    def __init__(self, *, recomputes: bool = True) -> None:
        self.clock, self.network, self.dialler = Clock(), Network(), LaterExecutor()
        self.peers = peer_book(self.network, self.dialler, self.clock)
        self.courier = Courier()
        courier: Any = self.courier
        self.stats = RowConnectorStats()
        self.side = DecodeSide(
            block_size=BLOCK,
            recomputes=recomputes,
            keys=KEYS,
            peers=self.peers,
            courier=courier,
            stats=self.stats,
            clock=self.clock,
        )

    def meet(self) -> None:
        self.network.greet()
        self.peers.register([peer()])
        self.dialler.run()

    def arrive(self, params: Any, **changes: Any) -> Any:
        """A request arrives; ``params`` may be a handoff."""
        given = params.model_dump(exclude_none=True) if isinstance(params, KVHandoff) else params
        wish = request(given, **changes)
        self.side.on_new_request(wish, given)
        return wish

    def schedule(self, wish: Any, num_local: int = 0, blocks: tuple[int, ...] = (4, 5, 6)) -> int | None:
        """vLLM schedules the request; returns the number of tokens that come from prefill."""
        num_external, is_async = self.side.num_new_matched_tokens(wish, num_local)
        assert is_async == bool(num_external)
        if num_external is not None:
            assert num_local + num_external <= wish.num_prompt_tokens, "vLLM ends the engine over this"
            self.side.after_alloc(wish, list(blocks), num_external)
        return num_external

    def step(self) -> StepMetadata:
        meta = StepMetadata()
        self.side.fill(meta)
        return meta

    def pulls(self) -> list[Pull]:
        return self.step().pulls

    def end_pull(self, request_id: str = "req", *, is_failed: bool = False) -> None:
        """The ranks report."""
        done = {request_id}
        output: Any = SimpleNamespace(finished_recving=done, failed_recving=done if is_failed else set())
        self.side.on_worker_output(output)

    def refusals(self) -> dict[str, int]:
        return {name.partition(":")[2]: n for name, n in self.stats.data.items() if name.startswith("refusals:")}

    def recomputes(self) -> int:
        return int(self.stats.data.get("recomputes", 0))


@pytest.fixture
def decode() -> Scene:
    made = Scene()
    made.meet()
    return made


def test_every_block_of_a_cold_prompt_is_pulled_once(decode: Scene) -> None:
    wish = decode.arrive(handoff())
    assert decode.side.num_new_matched_tokens(wish, 0) == (300, True)
    assert decode.schedule(wish) == 300, "may be asked repeatedly"
    [pull] = decode.pulls()
    assert (pull.request_id, pull.refusal, pull.asked_s) == ("req", None, decode.clock.now)
    assert (pull.block_ids, pull.remote_block_ids) == ([4, 5, 6], [7, 3, 9])
    assert pull.handoff == handoff()
    assert decode.pulls() == []
    assert decode.stats.is_empty()


@pytest.mark.parametrize(
    ("num_local", "mine", "theirs"), [(128, [5, 6], [3, 9]), (256, [6], [9]), (0, [4, 5, 6], [7, 3, 9])]
)
def test_only_what_decode_s_own_cache_lacks_is_pulled(
    decode: Scene, num_local: int, mine: list[int], theirs: list[int]
) -> None:
    wish = decode.arrive(handoff())
    assert decode.schedule(wish, num_local) == 300 - num_local
    [pull] = decode.pulls()
    assert (pull.block_ids, pull.remote_block_ids) == (mine, theirs)


def test_blocks_past_the_prompt_are_not_pulled_into(decode: Scene) -> None:
    wish = decode.arrive(handoff(256), token_ids=prompt(256))
    decode.schedule(wish, blocks=(4, 5, 6))
    [pull] = decode.pulls()
    assert (pull.block_ids, pull.remote_block_ids) == ([4, 5], [7, 3])


def test_a_prompt_that_decode_holds_already_is_released_unread(decode: Scene) -> None:
    wish = decode.arrive(handoff(256), token_ids=prompt(256))
    assert decode.schedule(wish, num_local=256) == 0
    assert decode.pulls() == []
    assert decode.courier.released == [(wish.kv_transfer_params["handoff_id"], "req")]
    assert decode.courier.kept == {}
    assert decode.refusals() == {}


def test_a_handoff_is_acted_on_once_also_after_a_preemption(decode: Scene) -> None:
    wish = decode.arrive(handoff())
    decode.schedule(wish)
    assert decode.schedule(wish) == 0, "while it is pulled"
    decode.end_pull()
    assert decode.schedule(wish) == 0, "and later"
    assert len(decode.pulls()) == 1


def test_a_lease_is_renewed_from_the_request_s_arrival_until_its_rows_are_here(decode: Scene) -> None:
    wish = decode.arrive(handoff())
    assert decode.courier.kept == {"req": handoff()}
    decode.schedule(wish)
    assert decode.courier.kept
    decode.end_pull()
    assert decode.courier.kept == {}
    assert decode.courier.released == [], "the ranks told prefill themselves"


def test_choices_of_one_prompt_read_one_handoff_each_on_its_own(decode: Scene) -> None:
    shared = handoff(num_readers=2)
    first, second = (decode.arrive(shared, request_id=f"req-{n}") for n in (0, 1))
    decode.schedule(first)
    decode.end_pull("req-0")
    assert set(decode.courier.kept) == {"req-1"}
    decode.schedule(second, num_local=256)
    assert [pull.request_id for pull in decode.pulls()] == ["req-0", "req-1"]


@pytest.mark.parametrize("status", [RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR])
def test_a_request_that_ends_before_it_was_scheduled_releases_its_blocks(decode: Scene, status: RequestStatus) -> None:
    wish = decode.arrive(handoff(), status=status)
    decode.side.request_finished(wish)
    assert decode.courier.released == [(handoff().handoff_id, "req")]
    assert decode.courier.kept == {}
    assert decode.schedule(wish) == 0
    assert decode.pulls() == []


def test_a_request_that_ends_while_it_is_pulled_lets_the_ranks_end_it(decode: Scene) -> None:
    wish = decode.arrive(handoff())
    decode.schedule(wish)
    decode.side.request_finished(wish)
    assert decode.courier.released == []
    decode.end_pull()
    assert decode.courier.released == []
    assert decode.courier.kept == {}


@pytest.mark.parametrize(("recomputes", "counted"), [(True, 1), (False, 0)])
def test_a_pull_that_failed_releases_the_blocks_and_is_counted_as_policy_says(recomputes: bool, counted: int) -> None:
    decode = Scene(recomputes=recomputes)
    decode.meet()
    decode.schedule(decode.arrive(handoff()))
    decode.end_pull(is_failed=True)
    assert decode.courier.released == [(handoff().handoff_id, "req")]
    assert decode.courier.kept == {}
    assert decode.recomputes() == counted
    assert decode.refusals() == {}


def test_a_request_without_a_handoff_is_left_alone(decode: Scene) -> None:
    for params in ({}, {"do_remote_prefill": False}, {"do_remote_decode": True}):
        wish = decode.arrive(params)
        assert decode.schedule(wish) == 0
        decode.side.request_finished(wish)
    assert decode.pulls() == []
    assert decode.stats.is_empty()


# Peers


def test_a_request_waits_while_its_engine_is_asked() -> None:
    decode = Scene()
    decode.network.greet()
    decode.peers.register([peer()])
    wish = decode.arrive(handoff())
    assert decode.side.num_new_matched_tokens(wish, 0) == (None, False)
    decode.dialler.run()
    assert decode.schedule(wish) == 300
    meta = decode.step()
    assert meta.peers == [PeerRows(ENGINE, [ENGINE.encode()])]
    assert len(meta.pulls) == 1


def test_an_engine_that_restarted_is_fenced_and_its_handoffs_are_refused(decode: Scene) -> None:
    wish = decode.arrive(handoff())
    decode.step()
    decode.network.greet(NEXT_LIFE)
    decode.peers.register([peer(NEXT_LIFE)])
    assert decode.schedule(wish) == 0
    assert decode.step().fenced == [ENGINE]
    assert decode.refusals() == {"unregistered": 1}


def test_an_engine_that_does_not_answer_makes_the_handoff_a_refused_one() -> None:
    decode = Scene()
    decode.peers.register([peer()])
    decode.dialler.run()
    wish = decode.arrive(handoff())
    assert decode.schedule(wish) == 0
    assert decode.refusals() == {"unreachable": 1}
    assert decode.recomputes() == 1
    assert decode.courier.kept == {}
    assert decode.courier.released == [(handoff().handoff_id, "req")]
    decode.clock.now += RETRY_S
    assert decode.schedule(wish) == 0, "once refused, it stays so"
    assert decode.refusals() == {"unreachable": 1}

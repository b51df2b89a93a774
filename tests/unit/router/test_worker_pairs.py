"""The registry gives out pairs that fit, turns away what fits nobody, and tells decode whom it may read from."""

from typing import Any

import pytest

from router.dialects import NIXL, TANDEM
from router.registry import WorkerRegistry
from router.workers import Worker
from tests.unit.router.factories import FINGERPRINT, ManualClock, make_heartbeat
from wire.errors import BadRequest, Conflict
from wire.worker import KVPeer, WorkerCheck, WorkerRole, WorkerState

TTL_S = 6.0
OTHER: dict[str, Any] = {"fingerprint": FINGERPRINT | {"max_model_len": "4096"}}
OLD: dict[str, Any] = {"wire_version": 1}


class Cluster:
    """A registry whose decode workers also hear of their peers, as over HTTP."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registry = WorkerRegistry(ttl_s=TTL_S, clock=self.clock)

    def beat(self, worker_id: str, **fields: Any) -> Worker:
        role = WorkerRole(worker_id.split("-")[0])
        worker = self.registry.heartbeat(make_heartbeat(worker_id, role=role, url=f"http://{worker_id}", **fields))
        self.registry.tell_peers(worker)
        return worker

    def static(self, role: WorkerRole, model: str = "nano") -> Worker:
        worker = self.registry.add_static(role, f"http://static-{role.value}:1")
        self.registry.observe_static(worker, model=model, max_model_len=8192)
        return worker

    def check(self, worker_id: str, *, model: str = "nano", **fields: Any) -> None:
        role = WorkerRole(worker_id.split("-")[0])
        self.registry.check(
            WorkerCheck(worker_id=worker_id, role=role, model=model, **({"fingerprint": dict(FINGERPRINT)} | fields))
        )

    def missing(self) -> list[WorkerRole]:
        return self.registry.pools().missing_roles()

    def pairs(self, model: str | None = None) -> dict[str, list[str]]:
        prefills = self.registry.pools().usable_prefills(model)
        return {p.worker_id: [d.worker_id for d in self.registry.pools().usable_decodes(p)] for p in prefills}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


# --- pairs ---


def test_workers_that_agree_pair_all_with_all(cluster: Cluster) -> None:
    for worker_id in ("prefill-0", "prefill-1", "decode-0", "decode-1"):
        cluster.beat(worker_id)
    both = ["decode-0", "decode-1"]
    assert cluster.pairs() == {"prefill-0": both, "prefill-1": both}


@pytest.mark.parametrize("difference", [OTHER, OLD])
def test_two_kinds_of_workers_pair_each_among_themselves(cluster: Cluster, difference: dict[str, Any]) -> None:
    cluster.beat("prefill-0")
    cluster.beat("prefill-1", **difference)
    cluster.beat("decode-0")
    cluster.beat("decode-1", **difference)
    assert cluster.pairs() == {"prefill-0": ["decode-0"], "prefill-1": ["decode-1"]}


def test_a_prefill_whose_only_decode_is_away_is_not_given_out(cluster: Cluster) -> None:
    cluster.beat("prefill-0")
    cluster.beat("prefill-1", **OTHER)
    cluster.beat("decode-0")
    decode = cluster.beat("decode-1", **OTHER)
    cluster.beat("decode-1", state=WorkerState.DRAINING, **OTHER)
    assert cluster.pairs() == {"prefill-0": ["decode-0"]}
    cluster.beat("decode-1", **OTHER)
    cluster.registry.suspect(decode)
    assert cluster.pairs() == {"prefill-0": ["decode-0"]}


def test_stock_engines_and_tandems_do_not_mix(cluster: Cluster) -> None:
    workers = {}
    for role in WorkerRole:
        for dialect in (TANDEM, NIXL):
            worker = cluster.registry.add_static(role, f"http://{role}-{dialect.name}:1")
            cluster.registry.observe_static(worker, model="nano", max_model_len=None, dialect=dialect)
            workers[worker.worker_id] = dialect
    pairs = cluster.pairs()
    assert len(pairs) == 2
    for prefill, decodes in pairs.items():
        assert [workers[decode] for decode in decodes] == [workers[prefill]]


def test_models_do_not_mix(cluster: Cluster) -> None:
    cluster.beat("prefill-0", model="a")
    cluster.beat("prefill-1", model="b")
    cluster.beat("decode-0", model="b")
    assert cluster.pairs() == {"prefill-1": ["decode-0"]}
    assert cluster.pairs("a") == {}
    assert cluster.pairs("b") == {"prefill-1": ["decode-0"]}


def test_a_decode_is_paired_only_with_engines_that_it_was_told_of(cluster: Cluster) -> None:
    cluster.beat("decode-0")
    cluster.beat("prefill-0")
    assert cluster.pairs() == {}
    cluster.beat("decode-0")
    assert cluster.pairs() == {"prefill-0": ["decode-0"]}
    cluster.beat("prefill-0", generation="g2")
    assert cluster.pairs() == {}
    cluster.beat("decode-0")
    assert cluster.pairs() == {"prefill-0": ["decode-0"]}


def test_a_worker_that_changes_while_it_runs_loses_those_that_no_longer_fit(cluster: Cluster) -> None:
    cluster.beat("prefill-0")
    cluster.beat("prefill-1", **OTHER)
    cluster.beat("decode-0")
    cluster.beat("decode-1", **OTHER)
    cluster.beat("prefill-0", **OTHER)
    assert cluster.pairs() == {"prefill-1": ["decode-1"]}


@pytest.mark.parametrize(
    ("static", "registered", "pair"),
    [
        (WorkerRole.PREFILL, "decode", {"prefill-static-prefill-1": ["decode-0"]}),
        (WorkerRole.DECODE, "prefill", {"prefill-0": ["decode-static-decode-1"]}),
    ],
)
def test_a_static_worker_pairs_with_whoever_serves_its_model(
    cluster: Cluster, static: WorkerRole, registered: str, pair: dict[str, list[str]]
) -> None:
    cluster.static(static)
    cluster.beat(f"{registered}-0", **OTHER)
    cluster.beat(f"{registered}-1", model="other")
    assert cluster.pairs() == pair


def test_a_pair_is_missing_until_both_roles_fit(cluster: Cluster) -> None:
    assert cluster.missing() == [WorkerRole.PREFILL, WorkerRole.DECODE]
    cluster.beat("decode-0")
    assert cluster.missing() == [WorkerRole.PREFILL]
    cluster.beat("prefill-0", model="other")
    assert cluster.missing() == [WorkerRole.PREFILL, WorkerRole.DECODE]
    cluster.beat("prefill-1")
    cluster.beat("decode-0")
    assert cluster.missing() == []


def test_ready_workers_that_do_not_pair_are_no_pair(cluster: Cluster) -> None:
    cluster.beat("prefill-0")
    cluster.beat("prefill-1", **OTHER)
    cluster.beat("decode-1", **OTHER)
    assert cluster.missing() == []
    cluster.registry.remove("prefill-1")
    assert cluster.missing() == [WorkerRole.PREFILL, WorkerRole.DECODE]


# --- who is turned away ---


@pytest.mark.parametrize(("there", "newcomer"), [("prefill-0", "decode-0"), ("decode-0", "prefill-0")])
def test_a_worker_that_fits_nobody_is_refused_with_both_sides_values(
    cluster: Cluster, there: str, newcomer: str
) -> None:
    cluster.beat(there)
    with pytest.raises(Conflict) as caught:
        cluster.beat(newcomer, **OTHER)
    assert caught.value.code == "worker_mismatch"
    assert f"max_model_len differs: 4096 on {newcomer}, 8192 on {there}" in caught.value.message
    assert [worker.worker_id for worker in cluster.registry.workers()] == [there]


@pytest.mark.parametrize(("there", "newcomer"), [("prefill-0", "decode-0"), ("decode-0", "prefill-0")])
@pytest.mark.parametrize("difference", [OTHER, OLD])
def test_a_check_is_answered_like_a_registration_and_registers_nothing(
    cluster: Cluster, there: str, newcomer: str, difference: dict[str, Any]
) -> None:
    cluster.check(newcomer, **difference)
    cluster.beat(there)
    with pytest.raises(Conflict) as asked:
        cluster.check(newcomer, **difference)
    with pytest.raises(Conflict) as registered:
        cluster.beat(newcomer, **difference)
    assert asked.value.message == registered.value.message
    cluster.check(newcomer)
    assert [worker.worker_id for worker in cluster.registry.workers()] == [there]


def test_a_check_refuses_a_version_that_nobody_knows(cluster: Cluster) -> None:
    with pytest.raises(BadRequest) as caught:
        cluster.check("decode-0", wire_version=99)
    assert caught.value.code == "wire_version_mismatch"


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"prefill-0": {"model": "another"}},
        {"decode-1": OTHER},
        {"prefill-0": OTHER, "prefill-1": {}},
        {"prefill-0": OTHER | {"state": WorkerState.DRAINING}},
    ],
    ids=["nobody", "another model", "its own role", "one that fits", "only one that leaves"],
)
def test_a_worker_is_taken_beside(cluster: Cluster, others: dict[str, dict[str, Any]]) -> None:
    for worker_id, fields in others.items():
        cluster.beat(worker_id, **fields)
    cluster.check("decode-0")
    cluster.beat("decode-0")


def test_a_worker_is_taken_beside_a_static_one_of_which_nothing_is_known(cluster: Cluster) -> None:
    cluster.beat("prefill-0", **OTHER)
    cluster.static(WorkerRole.PREFILL)
    cluster.beat("decode-0")


def test_a_worker_that_was_silent_for_too_long_turns_nobody_away(cluster: Cluster) -> None:
    cluster.beat("prefill-0", **OTHER)
    cluster.clock.now_s += TTL_S + 0.01
    cluster.beat("decode-0")


def test_a_worker_still_starting_counts(cluster: Cluster) -> None:
    cluster.beat("prefill-0", state=WorkerState.STARTING, **OTHER)
    with pytest.raises(Conflict):
        cluster.beat("decode-0")


def test_a_worker_that_was_taken_stays_when_those_that_fit_it_leave(cluster: Cluster) -> None:
    cluster.beat("prefill-0")
    cluster.beat("prefill-1", **OTHER)
    cluster.beat("decode-0")
    cluster.registry.remove("prefill-0")
    cluster.beat("decode-0")
    with pytest.raises(Conflict):
        cluster.beat("decode-0", generation="g2")
    with pytest.raises(Conflict):
        cluster.beat("decode-0", fingerprint={"changed": "while running"})
    assert {worker.generation for worker in cluster.registry.workers()} == {"g1"}


def test_a_worker_that_comes_back_in_the_other_role_is_not_compared_with_itself(cluster: Cluster) -> None:
    cluster.beat("prefill-0", **OTHER)
    cluster.registry.check(
        WorkerCheck(worker_id="prefill-0", role=WorkerRole.DECODE, model="nano", fingerprint=dict(FINGERPRINT))
    )


# --- what decode is told ---


def peer(worker_id: str, generation: str = "g1") -> KVPeer:
    return KVPeer(engine_id=f"{worker_id}-{generation}", host=f"{worker_id}.kv", port=5600)


def test_decode_is_told_its_prefill_workers_in_a_stable_order(cluster: Cluster) -> None:
    for worker_id in ("prefill-2", "prefill-0", "prefill-1"):
        cluster.beat(worker_id)
    decode = cluster.beat("decode-0")
    told = cluster.registry.tell_peers(decode)
    cluster.registry.remove("prefill-0")
    cluster.beat("prefill-0", generation="g2")
    again = cluster.registry.tell_peers(decode)
    assert told == (peer("prefill-0"), peer("prefill-1"), peer("prefill-2"))
    assert again == (peer("prefill-0", "g2"), peer("prefill-1"), peer("prefill-2"))


def test_decode_is_told_of_all_workers_that_pair_whatever_their_state(cluster: Cluster) -> None:
    cluster.beat("prefill-0", state=WorkerState.DRAINING)
    cluster.beat("prefill-1", state=WorkerState.STARTING)
    cluster.beat("prefill-2", **OTHER)
    cluster.beat("prefill-3", model="other")
    cluster.beat("prefill-4")
    cluster.static(WorkerRole.PREFILL)
    decode = cluster.beat("decode-0")
    cluster.beat("decode-1")
    assert cluster.registry.tell_peers(decode) == (peer("prefill-0"), peer("prefill-1"), peer("prefill-4"))


def test_prefill_and_static_workers_are_told_of_nobody(cluster: Cluster) -> None:
    cluster.beat("decode-0")
    prefill = cluster.beat("prefill-0")
    static = cluster.static(WorkerRole.DECODE)
    assert cluster.registry.tell_peers(prefill) == ()
    assert cluster.registry.tell_peers(static) == ()

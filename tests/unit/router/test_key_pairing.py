"""Workers pair where decode accepts what prefill signs, so that a key can be replaced and a wrong one serves nobody."""

from itertools import pairwise, product

import pytest

from router.pairing import find_mismatch, is_pair
from router.registry import WorkerRegistry
from tests.unit.router.factories import ManualClock, make_heartbeat
from tests.unit.wire.factories import HANDOFF
from wire.errors import Conflict
from wire.handoff import HANDOFF_KEY_ENV, HandoffKeys, KVHandoff
from wire.worker import WorkerCheck, WorkerHeartbeat, WorkerRole

OLD, NEW, OTHER = "old key", "new key", "key of another deployment"
ROTATION = (OLD, f"{OLD},{NEW}", f"{NEW},{OLD}", NEW)
SETTINGS = (*ROTATION, OTHER, f"{OTHER},{OLD}")


def worker(role: WorkerRole, keys: str | None, worker_id: str = "") -> WorkerCheck:
    """One that has these keys; None: it is older than key ids."""
    silent = WorkerCheck(worker_id=worker_id or f"{role.value}-0", role=role, model="m", fingerprint={})
    if keys is None:
        return silent
    held = HandoffKeys(keys)
    return silent.model_copy(update={"handoff_key": held.signs, "handoff_keys": held.verifies})


def pairs(prefill_keys: str | None, decode_keys: str | None) -> bool:
    return is_pair(worker(WorkerRole.PREFILL, prefill_keys), worker(WorkerRole.DECODE, decode_keys))


def verifies(prefill_keys: str, decode_keys: str) -> bool:
    signed = HandoffKeys(prefill_keys).sign(KVHandoff.model_validate(HANDOFF))
    return HandoffKeys(decode_keys).verify(signed)


@pytest.mark.parametrize(("prefill_keys", "decode_keys"), product(SETTINGS, SETTINGS))
def test_two_workers_pair_if_and_only_if_decode_verifies_what_prefill_signs(
    prefill_keys: str, decode_keys: str
) -> None:
    assert pairs(prefill_keys, decode_keys) == verifies(prefill_keys, decode_keys)


@pytest.mark.parametrize("step", pairwise(ROTATION))
def test_in_the_midst_of_each_step_of_a_rotation_every_worker_pairs_with_every_other(step: tuple[str, str]) -> None:
    assert all(pairs(prefill_keys, decode_keys) for prefill_keys, decode_keys in product(step, step))


def test_a_key_that_signs_before_all_accept_it_does_not_pair() -> None:
    assert not pairs(f"{NEW},{OLD}", OLD)


@pytest.mark.parametrize("known", SETTINGS)
def test_a_worker_that_does_not_say_its_keys_pairs_as_before(known: str) -> None:
    assert pairs(None, known)
    assert pairs(known, None)
    assert pairs(None, None)


def test_a_mismatch_names_the_variable_and_both_sides_ids() -> None:
    other, both = HandoffKeys(OTHER), HandoffKeys(ROTATION[1])
    prefill = worker(WorkerRole.PREFILL, OTHER)
    decodes = [worker(WorkerRole.DECODE, ROTATION[1], "d0"), worker(WorkerRole.DECODE, ROTATION[1], "d1")]
    theirs = " or ".join(both.verifies)
    text = find_mismatch(prefill, decodes)
    assert text is not None
    assert text.endswith(f"ids of {HANDOFF_KEY_ENV} don't pair: {other.signs} on prefill-0, {theirs} on d0 and d1.")
    text = find_mismatch(decodes[0], [prefill])
    assert text is not None
    assert text.endswith(f"ids of {HANDOFF_KEY_ENV} don't pair: {theirs} on d0, {other.signs} on prefill-0.")


def beat(worker_id: str, role: WorkerRole, keys: str, generation: str = "g1") -> WorkerHeartbeat:
    heartbeat = make_heartbeat(worker_id, role=role, generation=generation)
    held = HandoffKeys(keys)
    said = heartbeat.registration.model_copy(update={"handoff_key": held.signs, "handoff_keys": held.verifies})
    return heartbeat.model_copy(update={"registration": said})


@pytest.fixture
def registry() -> WorkerRegistry:
    registry = WorkerRegistry(ttl_s=6.0, clock=ManualClock())
    registry.heartbeat(beat("prefill-0", WorkerRole.PREFILL, OLD))
    registry.heartbeat(beat("decode-0", WorkerRole.DECODE, OLD))
    return registry


@pytest.mark.parametrize("role", WorkerRole)
def test_a_worker_with_a_foreign_key_is_refused_at_its_check_and_its_registration(
    registry: WorkerRegistry, role: WorkerRole
) -> None:
    stranger = beat(f"{role.value}-9", role, OTHER)
    for ask in (lambda: registry.check(stranger.registration), lambda: registry.heartbeat(stranger)):
        with pytest.raises(Conflict, match=HANDOFF_KEY_ENV):
            ask()


def test_a_decode_worker_is_given_no_handoff_that_it_would_refuse(registry: WorkerRegistry) -> None:
    """One with a foreign key that was there before its peers changed theirs stays, and gets nothing of them."""
    prefill, decode = sorted(registry.workers(), key=lambda w: w.role is WorkerRole.DECODE)
    registry.tell_peers(decode)
    assert decode.may_read_from(prefill)
    prefill = registry.heartbeat(beat("prefill-1", WorkerRole.PREFILL, f"{OLD},{NEW}"))
    registry.heartbeat(beat("decode-1", WorkerRole.DECODE, f"{NEW},{OLD}"))
    late = registry.heartbeat(beat("prefill-1", WorkerRole.PREFILL, NEW, generation="g2"))
    assert [peer.engine_id for peer in registry.tell_peers(decode)] == ["prefill-0-g1"]
    assert not decode.may_read_from(late)

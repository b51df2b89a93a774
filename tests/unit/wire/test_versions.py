"""Every version of the wire has a history and says which versions it reads."""

import pytest

from wire.versions import HISTORY, READS, WIRE_VERSION, may_pair
from wire.worker import WorkerCheck, WorkerRegistration

# A version that does not read its own handoffs would need its reason here.
READS_NOT_ITSELF: dict[int, str] = {}


def test_versions_count_up_and_the_newest_is_spoken() -> None:
    assert list(HISTORY) == list(range(1, WIRE_VERSION + 1))
    assert all(HISTORY.values())


def test_every_version_says_what_it_reads() -> None:
    assert set(READS) == set(HISTORY)
    assert all(read <= set(HISTORY) for read in READS.values())


@pytest.mark.parametrize("version", HISTORY)
def test_a_version_reads_itself_or_says_why_not(version: int) -> None:
    assert (version in READS[version]) != (version in READS_NOT_ITSELF)
    assert may_pair(version, version) != (version in READS_NOT_ITSELF)


def test_signed_handoffs_are_not_mixed_with_unsigned_ones() -> None:
    assert not may_pair(prefill_version=1, decode_version=2)
    assert not may_pair(prefill_version=2, decode_version=1)


def test_a_version_from_the_future_pairs_with_none() -> None:
    for known in HISTORY:
        assert not may_pair(WIRE_VERSION + 1, known)
        assert not may_pair(known, WIRE_VERSION + 1)
    assert not may_pair(WIRE_VERSION + 1, WIRE_VERSION + 1)


def test_workers_say_the_newest_version_unless_told() -> None:
    for model in (WorkerCheck, WorkerRegistration):
        assert model.model_fields["wire_version"].default == WIRE_VERSION

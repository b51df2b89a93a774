"""Counts add up over ranks and steps; gauges take the last word; nothing is counted twice."""

from typing import Any

import pytest

from kv_transfer.agent import ReadTelemetry
from kv_transfer.connector_stats import COUNTERS, HISTOGRAMS, RowConnectorStats
from kv_transfer.lease import DropReason
from wire.refusal import Refusal


def read(**changes: Any) -> ReadTelemetry:
    values = {"num_posted": 3, "num_descriptors": 2, "num_bytes": 3000, "post_s": 1e-5, "transfer_s": 1e-3}
    return ReadTelemetry(**(values | changes))


def test_a_pull_from_two_ranks_is_one_handoff_and_two_reads() -> None:
    stats = RowConnectorStats()
    stats.record_pull([read(), read(num_posted=6, num_bytes=5000, transfer_s=2e-3)], num_blocks=3)
    assert stats.data == {
        "reads": 2,
        "blocks": 3,
        "posted_descriptors": 9,
        "descriptors": 4,
        "bytes": 8000,
        "handoff_bytes": [8000],
        "post_seconds": [2e-5],
        "wire_seconds": [2e-3],
        "descriptors_per_block": [3.0],
        "gigabytes_per_second": [8000 / 2e-3 / 1e9],
    }


def test_a_read_that_took_no_time_has_no_rate() -> None:
    stats = RowConnectorStats()
    stats.record_pull([read(transfer_s=0.0)], num_blocks=3)
    assert "gigabytes_per_second" not in stats.data


def test_counts_and_samples_of_all_ranks_add_up_and_gauges_do_not() -> None:
    one, other = RowConnectorStats(), RowConnectorStats()
    for stats, leases in ((one, 5), (other, 2)):
        stats.count("failures")
        stats.refuse(Refusal.PROMPT)
        stats.end_lease(DropReason.EXPIRED)
        stats.sample("wire_seconds", leases)
        stats.set_leases({"held": leases})
        stats.set_transport("shm")
    assert one.aggregate(other) is one
    assert one.data == {
        "failures": 2,
        "refusals:prompt": 2,
        "leases_ended:expired": 2,
        "wire_seconds": [5, 2],
        "leases:held": 2,
        "transport:shm": 1,
    }
    assert other.data["wire_seconds"] == [2], "the other is left as it was"


def test_what_is_taken_is_not_counted_again() -> None:
    stats = RowConnectorStats()
    assert stats.take() is None
    assert stats.is_empty()
    stats.count("failures", 2)
    taken = stats.take()
    assert taken is not None
    stats.count("failures")
    assert (taken.data, stats.data) == ({"failures": 2}, {"failures": 1})
    stats.reset()
    assert stats.is_empty()


def test_the_line_for_the_log_holds_numbers_and_the_rate() -> None:
    stats = RowConnectorStats()
    stats.record_pull([read(num_bytes=4_000_000_000, transfer_s=2.0)], num_blocks=3)
    line = stats.reduce()
    assert line["GB/s"] == 2.0
    assert line["blocks"] == 3
    assert all(isinstance(value, int | float) for value in line.values())
    assert RowConnectorStats().reduce() == {}


def test_an_unknown_name_is_a_mistake_of_ours() -> None:
    stats = RowConnectorStats()
    with pytest.raises(AssertionError):
        stats.count("surprise")
    with pytest.raises(AssertionError):
        stats.sample("surprise", 1.0)


def test_names_are_counters_or_histograms_and_buckets_rise() -> None:
    assert not COUNTERS.keys() & HISTOGRAMS.keys()
    for _, buckets in HISTOGRAMS.values():
        assert buckets == sorted(set(buckets))

"""Answers are judged by status, tag and completeness; times become percentiles."""

import pytest

from bench.router.chats import make_tag, whole_answer, whole_stream
from bench.router.tally import Tally, find_fault, percentile, summary_ms

TAG, OTHER_TAG = make_tag(1), make_tag(2)
WHOLE = whole_answer(16).filled(TAG)
STREAM = whole_stream(4).filled(TAG)


@pytest.mark.parametrize(("percent", "value"), [(50, 2.0), (51, 3.0), (99, 4.0), (100, 4.0), (1, 1.0)])
def test_a_percentile_is_a_value_that_was_measured(percent: float, value: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == value


def test_nothing_measured_has_no_percentile_and_no_summary() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    assert summary_ms([]) == {}


def test_a_summary_is_in_ms() -> None:
    assert summary_ms([0.003, 0.001]) == {"p50": 1.0, "p99": 3.0, "max": 3.0}


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (200, STREAM, None),
        (502, STREAM, "status 502"),
        (200, whole_stream(4).filled(OTHER_TAG), "wrong body"),
        (200, STREAM.replace(TAG, OTHER_TAG, 1), "wrong body"),
        (200, STREAM[:-1], "body cut short"),
        (200, b"", "body cut short"),
        (200, STREAM + b"\n", "wrong body"),
    ],
    ids=["good", "status", "all of another", "in part of another", "cut", "empty", "too long"],
)
def test_a_fault_is_named(status: int, body: bytes, fault: str | None) -> None:
    assert find_fault(status, body, STREAM) == fault


def test_a_good_stream_counts_its_tokens_and_the_gaps_between_arrivals() -> None:
    tally = Tally(whole_stream(4), 4)
    tally.finish(TAG, 200, STREAM, sent_s=1.0, arrivals_s=[1.5, 1.75, 2.0, 2.5])
    report = tally.report()
    assert (report["num_requests"], report["num_tokens"], report["errors"]) == (1, 4, {})
    assert list(tally.ttft_s) == [0.5]
    assert list(tally.gaps_s) == [0.25, 0.25, 0.5]


def test_a_bad_answer_is_counted_and_not_timed() -> None:
    tally = Tally(whole_answer(16), 0)
    tally.finish(TAG, 500, b"", sent_s=1.0, arrivals_s=[1.5])
    assert tally.report() == {
        "num_requests": 0,
        "num_tokens": 0,
        "errors": {"status 500": 1},
        "ttft_ms": {},
        "gap_ms": {},
    }

"""Of a client's trace context what W3C allows is passed on as it is, and nothing else."""

import pytest

from router.config import RouterConfig
from router.trace_context import make_tracer, trace_lines

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALID = f"00-{TRACE}-{PARENT}-01"
MEMBERS_32 = ",".join([f"k{number}=v" for number in range(32)])


def lines_of(*headers: tuple[str, str]) -> str:
    return trace_lines({"headers": [(name.encode(), value.encode("latin-1")) for name, value in headers]})


@pytest.mark.parametrize(
    "value", [VALID, f"00-{TRACE}-{PARENT}-00", f"00-{TRACE}-{PARENT}-ff", f"01-{TRACE}-{PARENT}-01"]
)
def test_a_valid_parent_is_one_line(value: str) -> None:
    assert lines_of(("accept", "x"), ("traceparent", value)) == f"traceparent: {value}\r\n"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "1",
        TRACE,
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE}-{PARENT}-01-",
        f"00-{TRACE}-{PARENT}-01-more",
        f"01-{TRACE}-{PARENT}-01-more",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        VALID.upper(),
        f"00-{TRACE[:-1]}g-{PARENT}-01",
        f"00_{TRACE}_{PARENT}_01",
        f" {VALID}",
        f"{VALID}\n",
        f"{VALID}\r\nx: y",
        f"00-{TRACE}-{PARENT}-0\u00b2",
    ],
)
def test_a_malformed_parent_is_ignored_with_its_state(value: str) -> None:
    assert lines_of(("traceparent", value), ("tracestate", "a=1")) == ""


def test_of_two_parents_neither_counts() -> None:
    assert lines_of(("traceparent", VALID), ("traceparent", VALID)) == ""


def test_a_state_alone_says_nothing() -> None:
    assert lines_of(("tracestate", "a=1")) == ""


@pytest.mark.parametrize(
    "state",
    ["a=1", "a=1,b=2", "a=1 , \tb= 2", "a=1,,b=2", "1t@v=x", "rojo=00f067aa0ba902b7", "a*/_-0=!~", MEMBERS_32],
)
def test_a_valid_state_comes_along_as_it_is(state: str) -> None:
    assert lines_of(("traceparent", VALID), ("tracestate", state)) == f"traceparent: {VALID}\r\ntracestate: {state}\r\n"


def test_a_state_in_several_headers_is_one_in_their_order() -> None:
    headers = (("tracestate", "b=2"), ("traceparent", VALID), ("tracestate", "a=1"))
    assert lines_of(*headers) == f"traceparent: {VALID}\r\ntracestate: b=2,a=1\r\n"


@pytest.mark.parametrize(
    "state",
    [
        "",
        " ",
        ",",
        "a",
        "a=",
        "=1",
        "A=1",
        "1=1",
        "a=1=2",
        "a=\u00e9",
        "a=1\r\nx: y",
        "a=1\0",
        "a=1,a=2",
        "a=1,B",
        f"{MEMBERS_32},k=v",
        f"a={'x' * 257}",
        f"a={'x' * 250},b={'x' * 256},c=1",
    ],
)
def test_a_malformed_state_leaves_the_parent_alone(state: str) -> None:
    assert lines_of(("traceparent", VALID), ("tracestate", state)) == f"traceparent: {VALID}\r\n"


def test_without_the_setting_there_is_no_tracer() -> None:
    assert make_tracer(RouterConfig()) is None

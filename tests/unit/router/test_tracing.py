"""The parts of tracing that need no request: who the router says it is, and how often it complains."""

import logging
import time

import pytest

from router.config import RouterConfig
from router.span_attributes import _address
from router.trace_context import make_tracer
from router.tracing import COMPLAINT_INTERVAL_S, OtelTracer, _resource, _Seldom


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("OTEL_SERVICE_NAME", "front", "front"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=front,k8s.pod.name=a", "front"),
        ("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=a", "tandem-router"),
        ("OTEL_RESOURCE_ATTRIBUTES", "", "tandem-router"),
    ],
)
def test_the_service_is_named_by_the_environment_or_by_itself(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, name: str
) -> None:
    monkeypatch.setenv(variable, value)
    attributes = _resource().attributes
    assert attributes["service.name"] == name
    assert attributes.get("k8s.pod.name") == ("a" if "pod" in value else None)


def test_of_an_exporters_complaints_one_in_a_while_is_logged() -> None:
    seldom = _Seldom()
    record = logging.LogRecord("x", logging.WARNING, "", 0, "", (), None)
    assert [seldom.filter(record) for _ in range(3)] == [True, False, False]
    record.created += COMPLAINT_INTERVAL_S
    assert seldom.filter(record)


async def test_a_tracer_without_a_collector_is_made_and_ended_at_once() -> None:
    began_s = time.monotonic()
    tracer = make_tracer(RouterConfig(otlp_traces_endpoint="http://192.0.2.1:4318"))
    assert isinstance(tracer, OtelTracer)
    await tracer.aclose()
    assert time.monotonic() - began_s < 2


@pytest.mark.parametrize(
    ("url", "full", "address", "port"),
    [
        ("http://a:1/v1/x", "http://a:1/v1/x", "a", 1),
        ("https://a/v1/x", "https://a:443/v1/x", "a", 443),
        ("http://[::1]:2/x", "http://[::1]:2/x", "::1", 2),
        ("http://me:hush@a:1/x?key=hush", "http://a:1/x", "a", 1),
    ],
)
def test_where_a_leg_goes_is_told_without_what_could_be_secret(url: str, full: str, address: str, port: int) -> None:
    assert _address(url) == {"url.full": full, "server.address": address, "server.port": port}


def test_of_a_url_that_can_not_be_used_nothing_is_told() -> None:
    assert _address("http://a:x/") == {}

"""A router process with and without traces: what it imports, what it needs, and that no collector holds it up."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.router.conftest import TEXT
from tests.integration.router.fake_workers import FakeDecode, FakePrefill
from tests.integration.router.processes import REPOSITORY, START_LIMIT_S, port_of, router_process, wait_until_ready
from tests.integration.router.serving import served, unused_url
from tests.integration.router.trace_collector import Collector


def run(code: str, *arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=REPOSITORY,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
    )


def test_without_the_setting_nothing_of_opentelemetry_is_imported() -> None:
    code = (
        "import sys, router.program\n"
        "from router.app import build_parts, create_app\n"
        "from router.config import load_config\n"
        "create_app(build_parts(load_config(environ={})))\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry') or name == 'router.tracing'])"
    )
    ended = run(code)
    assert ended.stdout.strip() == "[]", ended.stderr


@pytest.mark.parametrize("library", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"])
def test_a_missing_library_stops_the_start_with_the_setting_and_the_extra(library: str) -> None:
    code = (
        "import sys\n"
        f"sys.modules[{library!r}] = None\n"
        "from router.program import main\n"
        "main(['--otlp-traces-endpoint', 'http://127.0.0.1:4318'])"
    )
    ended = run(code)
    assert ended.returncode == 2
    [line] = ended.stderr.splitlines()
    assert line.startswith("router: otlp_traces_endpoint: needs the extra otel (pip install 'tandem-serve[otel]'): ")
    assert library in line


@pytest.mark.parametrize(("variable", "value"), [("OTEL_BSP_MAX_QUEUE_SIZE", "-1"), ("OTEL_BSP_SCHEDULE_DELAY", "0")])
def test_a_variable_that_the_sdk_can_not_use_stops_the_start_too(variable: str, value: str) -> None:
    code = "from router.program import main; main(['--otlp-traces-endpoint', 'http://127.0.0.1:4318'])"
    ended = run(code, **{variable: value})
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("router: otlp_traces_endpoint: OpenTelemetry can't be set up: ")


async def test_the_last_spans_are_delivered_before_the_process_ends() -> None:
    prefill = FakePrefill("prefill-0")
    decode = FakeDecode("decode-0", prefills={"prefill-0": prefill})
    collector = Collector()
    async with (
        served(prefill.app()) as prefill_url,
        served(decode.app()) as decode_url,
        served(collector.app()) as collector_url,
        router_process(
            *("--prefill", prefill_url, "--decode", decode_url),
            TANDEM_ROUTER_OTLP_TRACES_ENDPOINT=collector_url,
            OTEL_SERVICE_NAME="mine",
            OTEL_BSP_SCHEDULE_DELAY="600000",  # so long they would wait for more
        ) as (process, url),
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        await wait_until_ready(http)
        assert (await http.post("/v1/completions", json=TEXT, headers={"x-request-id": "r"})).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), START_LIMIT_S) == 0
    trace = await collector.trace("r")
    assert trace.names == ["prefill", "decode"]
    assert trace.root["server.port"] == int(port_of(url))
    assert {resource["service.name"] for resource in collector.resources} == {"mine"}


@pytest.fixture(params=["absent", "silent"])
def mute_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A collector that never answers: nothing listens, or the kernel takes connections that nobody reads."""
    if request.param == "absent":
        yield unused_url()
        return
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


async def test_a_collector_that_does_not_answer_holds_nothing_up(mute_url: str) -> None:
    prefill = FakePrefill("prefill-0")
    decode = FakeDecode("decode-0", prefills={"prefill-0": prefill})
    async with (
        served(prefill.app()) as prefill_url,
        served(decode.app()) as decode_url,
        router_process(
            *("--prefill", prefill_url, "--decode", decode_url, "--otlp-traces-endpoint", mute_url),
            OTEL_BSP_SCHEDULE_DELAY="10",
        ) as (process, url),
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        await wait_until_ready(http)
        for _ in range(20):
            answer = await http.post("/v1/completions", json=TEXT)
            assert (answer.status_code, answer.content) == (200, decode.whole)
        process.send_signal(signal.SIGTERM)
        _, errors = await asyncio.wait_for(process.communicate(), START_LIMIT_S)
    assert process.returncode == 0
    complaints = [line for line in errors.decode().splitlines() if " opentelemetry." in line or "spans" in line]
    assert 1 <= len(complaints) <= 3, complaints

"""The router as a process: starts alone, serves, and on a signal finishes what it has and exits with 0."""

import asyncio
import os
import signal
import subprocess
import sys

import httpx
import pytest

from tests.integration.router.conftest import TEXT
from tests.integration.router.fake_workers import FakeDecode, FakePrefill
from tests.integration.router.processes import (
    REPOSITORY,
    START_LIMIT_S,
    is_listening,
    router_process,
    wait_until_draining,
    wait_until_ready,
)
from tests.integration.router.serving import eventually, served

NUM_STREAMS = 20
HEAVY = ("torch", "vllm", "nixl", "ray", "numpy", "transformers")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_streams_finish_and_exits_with_0(number: signal.Signals) -> None:
    """Case 24."""
    prefill = FakePrefill("prefill-0")
    decode = FakeDecode("decode-0", prefills={"prefill-0": prefill})
    async with (
        served(prefill.app()) as prefill_url,
        served(decode.app()) as decode_url,
        router_process("--prefill", prefill_url, "--decode", decode_url) as (process, url),
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        await wait_until_ready(http)
        decode.faults.extend(["hold_midway"] * NUM_STREAMS)
        first_bytes = asyncio.Barrier(NUM_STREAMS + 1)

        async def receive() -> bytes:
            async with http.stream("POST", "/v1/completions", json=TEXT | {"stream": True}) as answer:
                pieces = answer.aiter_raw()
                received = await anext(pieces)
                await first_bytes.wait()
                return received + b"".join([piece async for piece in pieces])

        streams = [asyncio.create_task(receive()) for _ in range(NUM_STREAMS)]
        await first_bytes.wait()
        process.send_signal(number)
        await wait_until_draining(http)
        refused = await http.post("/v1/completions", json=TEXT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        counted = 'tandem_router_admission_refused_total{reason="draining"} 1.0'
        assert counted in (await http.get("/metrics")).text
        assert (await http.get("/health")).status_code == 200
        decode.gate.set()
        assert await asyncio.gather(*streams) == [b"".join(decode.pieces)] * NUM_STREAMS
        assert await asyncio.wait_for(process.wait(), START_LIMIT_S) == 0
    assert prefill.leases == {}
    assert prefill.released == []


async def test_an_idle_router_stops_at_once() -> None:
    async with router_process() as (process, url), httpx.AsyncClient(base_url=url) as http:
        await eventually(lambda: is_listening(url))
        assert (await http.get("/ready")).status_code == 503
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), START_LIMIT_S) == 0


async def test_a_second_signal_cuts_what_is_left_and_its_leases_are_released() -> None:
    prefill = FakePrefill("prefill-0")
    decode = FakeDecode("decode-0", prefills={"prefill-0": prefill})
    async with (
        served(prefill.app()) as prefill_url,
        served(decode.app()) as decode_url,
        router_process("--prefill", prefill_url, "--decode", decode_url, "--shutdown-timeout-s", "600") as (
            process,
            url,
        ),
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        await wait_until_ready(http)
        decode.faults.append("hang_midway")
        async with http.stream("POST", "/v1/completions", json=TEXT | {"stream": True}) as answer:
            await anext(answer.aiter_raw())
            process.send_signal(signal.SIGTERM)
            await wait_until_draining(http)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), START_LIMIT_S) == 0
        assert prefill.released == prefill.granted


async def test_a_stream_past_the_deadline_is_cut_and_its_lease_released() -> None:
    prefill = FakePrefill("prefill-0")
    decode = FakeDecode("decode-0", prefills={"prefill-0": prefill})
    async with (
        served(prefill.app()) as prefill_url,
        served(decode.app()) as decode_url,
        router_process("--prefill", prefill_url, "--decode", decode_url, "--shutdown-timeout-s", "1") as (process, url),
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        await wait_until_ready(http)
        decode.faults.append("hang_midway")
        async with http.stream("POST", "/v1/completions", json=TEXT | {"stream": True}) as answer:
            await anext(answer.aiter_raw())
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), START_LIMIT_S) == 0
        assert prefill.released == prefill.granted


def test_a_wrong_setting_stops_the_start_with_its_name() -> None:
    environ = os.environ | {"TANDEM_ROUTER_PREFIL_TIMEOUT_S": "5"}
    ended = subprocess.run(
        [sys.executable, "-m", "router"], cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert "TANDEM_ROUTER_PREFIL_TIMEOUT_S" in ended.stderr


def test_importing_the_router_brings_in_none_of_the_engines_packages() -> None:
    code = f"import sys, router.program; print([m for m in {HEAVY!r} if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == "[]", ended.stderr

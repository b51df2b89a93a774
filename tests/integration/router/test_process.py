"""The router as a process: starts alone, serves, and on a signal finishes what it has and exits with 0."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.integration.router.conftest import TEXT
from tests.integration.router.fake_workers import FakeDecode, FakePrefill
from tests.integration.router.serving import eventually, served, unused_url

REPOSITORY = Path(__file__).resolve().parents[3]
START_LIMIT_S = 60.0
NUM_STREAMS = 20
HEAVY = ("torch", "vllm", "nixl", "ray", "numpy", "transformers")


@asynccontextmanager
async def router_process(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    url = unused_url()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "--port", url.rsplit(":", 1)[1], "--health-interval-s", "0.2", *arguments),
        cwd=REPOSITORY,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process, url
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def wait_until_ready(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(START_LIMIT_S):
        while True:
            try:
                if (await http.get("/ready")).status_code == 200:
                    return
            except httpx.ConnectError:
                pass
            await asyncio.sleep(0.05)


def is_listening(url: str) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", int(url.rsplit(":", 1)[1]))) == 0


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
        await eventually(lambda: not is_listening(url))
        decode.gate.set()
        assert await asyncio.gather(*streams) == [b"".join(decode.pieces)] * NUM_STREAMS
        assert await asyncio.wait_for(process.wait(), START_LIMIT_S) == 0
    assert prefill.leases == {}


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
    code = f"import sys, router.__main__; print([m for m in {HEAVY!r} if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == "[]", ended.stderr

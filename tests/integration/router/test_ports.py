"""Where the router listens: by flag, variable or file, on one port or on two, and until when."""

import asyncio
import json
import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.integration.router.conftest import TEXT
from tests.integration.router.fake_workers import FakeDecode, FakePrefill
from tests.integration.router.processes import (
    START_LIMIT_S,
    heartbeat,
    is_listening,
    port_of,
    router_process,
    started,
    wait_until_draining,
    wait_until_listening,
    wait_until_ready,
)
from tests.integration.router.serving import eventually, served, unused_url
from wire.worker import WorkerRole


async def test_flag_beats_variable_beats_file(tmp_path: Path) -> None:
    by_file, by_variable, by_flag = (unused_url() for _ in range(3))
    file = tmp_path / "router.json"
    file.write_text(json.dumps({"port": int(port_of(by_file)), "metrics_port": None}))
    ways: list[tuple[str, dict[str, str], list[str]]] = [
        (by_file, {}, []),
        (by_variable, {"TANDEM_ROUTER_PORT": port_of(by_variable)}, []),
        (by_flag, {"TANDEM_ROUTER_PORT": port_of(by_variable)}, ["--port", port_of(by_flag)]),
    ]
    for url, environ, flags in ways:
        async with started("--config", str(file), *flags, **environ):
            await wait_until_listening(url)
            assert [is_listening(other) for other in (by_file, by_variable, by_flag)].count(True) == 1


@pytest.mark.parametrize("key", ["port", "metrics_port"])
async def test_a_taken_port_ends_the_start_with_its_number_and_nothing_is_served(key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken, free = str(server.getsockname()[1]), unused_url()
        ports = {"port": port_of(free), "metrics_port": port_of(free)} | {key: taken}
        flags = [word for name, port in ports.items() for word in (f"--{name.replace('_', '-')}", port)]
        async with started(*flags) as process:
            _, errors = await asyncio.wait_for(process.communicate(), START_LIMIT_S)
        assert process.returncode == 1
        assert errors.decode().splitlines()[-1] == (
            f"router: port {taken} on 127.0.0.1 can't be listened on: Address already in use"
        )


async def test_an_address_of_another_machine_ends_the_start_with_its_name() -> None:
    async with started("--host", "192.0.2.1", "--port", "8000") as process:
        _, errors = await asyncio.wait_for(process.communicate(), START_LIMIT_S)
    assert process.returncode == 1
    assert b"port 8000" in errors
    assert b"192.0.2.1" in errors


async def test_workers_are_heard_and_metrics_read_until_the_last_stream_has_ended() -> None:
    prefill = FakePrefill("prefill-0")
    decode = FakeDecode("decode-0", prefills={"prefill-0": prefill})
    control_url = unused_url()
    async with (
        served(prefill.app()) as prefill_url,
        served(decode.app()) as decode_url,
        router_process("--metrics-port", port_of(control_url)) as (process, url),
        httpx.AsyncClient(base_url=url, timeout=30) as http,
        httpx.AsyncClient(base_url=control_url, timeout=30) as control,
    ):
        beats = [heartbeat(WorkerRole.PREFILL, prefill_url), heartbeat(WorkerRole.DECODE, decode_url)]

        async def beat() -> None:
            for body in beats:
                assert (await control.post("/internal/workers", json=body)).status_code == 200

        await wait_until_listening(url, control_url)
        await beat()
        await wait_until_ready(http)
        decode.faults.append("hold_midway")
        async with http.stream("POST", "/v1/completions", json=TEXT | {"stream": True}) as answer:
            pieces = answer.aiter_raw()
            await anext(pieces)
            process.send_signal(signal.SIGTERM)
            await wait_until_draining(control)
            await beat()
            readiness = await control.get("/ready")
            assert (readiness.status_code, readiness.json()) == (503, {"ready": False, "missing": []})
            assert (await control.get("/health")).status_code == 200
            assert "tandem_router_requests_in_flight 1.0" in (await control.get("/metrics")).text
            decode.gate.set()
            received = b"".join([piece async for piece in pieces])
        assert received.endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), START_LIMIT_S) == 0
        assert not is_listening(control_url)
    assert prefill.leases == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_one_signal_ends_both_ports(number: signal.Signals) -> None:
    control_url = unused_url()
    async with router_process("--metrics-port", port_of(control_url)) as (process, url):
        await wait_until_listening(url, control_url)
        async with httpx.AsyncClient(base_url=control_url) as control:
            assert (await control.get("/health")).status_code == 200  # its signal handlers are there
            process.send_signal(number)
            assert await asyncio.wait_for(process.wait(), START_LIMIT_S) == 0


async def test_a_second_ctrl_c_does_not_wait_for_streams() -> None:
    decode = FakeDecode("decode-0")
    async with (
        served(FakePrefill("prefill-0").app()) as prefill_url,
        served(decode.app()) as decode_url,
        router_process("--prefill", prefill_url, "--decode", decode_url) as (process, url),
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        await wait_until_ready(http)
        decode.faults.append("hang_midway")
        # By decode alone, so that there is no handoff which nobody would release.
        alone = TEXT | {"stream": True, "use_beam_search": True}
        async with http.stream("POST", "/v1/completions", json=alone) as answer:
            await anext(answer.aiter_raw())
            process.send_signal(signal.SIGINT)
            await eventually(lambda: not is_listening(url))
            process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(process.wait(), START_LIMIT_S) == 0


async def test_keys_of_a_file_are_read_again_on_sighup(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("alice:sk-1\n")
    async with (
        router_process("--api-keys-file", str(file)) as (process, url),
        httpx.AsyncClient(base_url=url) as http,
    ):

        async def status(key: str) -> int:
            return (await http.get("/v1/models", headers={"authorization": f"Bearer {key}"})).status_code

        await wait_until_listening(url)
        assert [await status("sk-1"), await status("sk-2")] == [200, 401]
        file.write_text("alice:sk-2\n")
        process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(START_LIMIT_S):
            while await status("sk-2") != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert await status("sk-1") == 401

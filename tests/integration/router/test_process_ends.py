"""Several processes end as one router does; one of them alone is replaced, and none outlives their parent."""

import asyncio
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.router.conftest import TEXT
from tests.integration.router.processes import (
    START_LIMIT_S,
    is_listening,
    port_of,
    started,
    wait_until_draining,
)
from tests.integration.router.serving import eventually, unused_url
from tests.integration.router.several import (
    GOOD,
    IN_FLIGHT,
    NUM_PROCESSES,
    NUM_REQUESTS,
    counters,
    process_of,
    several,
)

STREAM: dict[str, Any] = TEXT | {"stream": True}


async def test_a_killed_process_is_replaced_while_others_serve_and_no_counter_goes_backwards() -> None:
    async with several() as router:
        before = set(await router.ask_all())
        shown = await router.metrics()
        victim = router.children()[0]
        os.kill(victim, signal.SIGKILL)
        await eventually(lambda: victim not in router.children())
        assert len(set(await router.ask_all()) & before) == NUM_PROCESSES - 1
        await router.wait_until_all_serve()
        assert len(set(await router.ask_all()) - before) == 1
        metrics = await router.metrics()
        assert metrics[GOOD] == 3 * NUM_REQUESTS
        assert metrics["tandem_router_process_restarts_total"] == 1
        assert {name: value for name, value in counters(shown).items() if metrics[name] < value} == {}


async def test_a_signal_lets_a_stream_finish_while_all_processes_refuse_what_is_new() -> None:
    async with several() as router:
        router.decode.faults.append("hold_midway")
        async with router.http.stream("POST", "/v1/completions", json=STREAM) as answer:
            pieces = answer.aiter_raw()
            received = await anext(pieces)
            router.process.send_signal(signal.SIGTERM)
            await wait_until_draining(router.control)
            await router.wait_until_told(503)
            refused = [await router.post() for _ in range(NUM_REQUESTS)]
            assert {(one.status_code, one.json()["error"]["code"]) for one in refused} == {(503, "draining")}
            assert len({process_of(one) for one in refused}) == NUM_PROCESSES
            await router.beat()
            metrics = await router.metrics()
            assert metrics[IN_FLIGHT] == 1
            assert metrics['tandem_router_admission_refused_total{reason="draining"}'] == NUM_REQUESTS
            router.decode.gate.set()
            received += b"".join([piece async for piece in pieces])
        assert received == b"".join(router.decode.pieces)
        assert await asyncio.wait_for(router.process.wait(), START_LIMIT_S) == 0
        assert not is_listening(router.control_url)


async def test_a_second_ctrl_c_cuts_what_is_left_and_its_leases_are_released() -> None:
    async with several("--shutdown-timeout-s", "600") as router:
        router.decode.faults.append("hang_midway")
        async with router.http.stream("POST", "/v1/completions", json=STREAM) as answer:
            await anext(answer.aiter_raw())
            router.process.send_signal(signal.SIGINT)
            await wait_until_draining(router.control)
            router.process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(router.process.wait(), START_LIMIT_S) == 0
        assert router.prefill.released == router.prefill.granted


async def test_without_their_parent_processes_finish_what_they_have_and_end() -> None:
    async with several() as router:
        children = router.children()
        assert len(children) == NUM_PROCESSES
        router.decode.faults.append("hold_midway")
        async with router.http.stream("POST", "/v1/completions", json=STREAM) as answer:
            pieces = answer.aiter_raw()
            received = await anext(pieces)
            router.process.kill()
            await eventually(lambda: sum(map(is_running, children)) == 1)
            router.decode.gate.set()
            received += b"".join([piece async for piece in pieces])
        assert received == b"".join(router.decode.pieces)
        await eventually(lambda: not any(map(is_running, children)))
        assert not is_listening(router.url)


async def test_without_a_metrics_port_the_start_ends_with_the_settings_name() -> None:
    async with started("--processes", "2") as process:
        _, errors = await asyncio.wait_for(process.communicate(), START_LIMIT_S)
    assert process.returncode == 2
    assert errors.decode().splitlines()[-1] == "router: processes: more than 1 need a metrics_port"


@pytest.mark.parametrize("key", ["port", "metrics_port"])
async def test_a_taken_port_ends_the_start_with_its_number_and_nothing_is_served(key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken, free = str(server.getsockname()[1]), port_of(unused_url())
        ports = {"port": free, "metrics_port": free} | {key: taken}
        flags = [word for name, port in ports.items() for word in (f"--{name.replace('_', '-')}", port)]
        async with started("--processes", "2", *flags) as process:
            _, errors = await asyncio.wait_for(process.communicate(), START_LIMIT_S)
    assert process.returncode == 1
    assert errors.decode().splitlines()[-1] == (
        f"router: port {taken} on 127.0.0.1 can't be listened on: Address already in use"
    )


def is_running(pid: int) -> bool:
    """Whether it is there and not merely waiting to be reaped, by whoever took it over."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False

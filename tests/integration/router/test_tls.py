"""TLS towards clients and towards workers, and workers on IPv6."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from router.app import build_parts
from router.config import ConfigError, RouterConfig
from router.tls import server_context, worker_context
from tests.certificates import Authority, Pair
from tests.integration.router.conftest import TEXT
from tests.integration.router.fake_workers import FakeDecode, FakePrefill
from tests.integration.router.processes import port_of, router_process, wait_until_listening
from tests.integration.router.serving import QuietServer, eventually, served, served_router, unused_url


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("server")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("strange"))


@pytest.fixture
def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.ca)


@asynccontextmanager
async def served_at(app: Any, host: str, pair: Pair | None = None) -> AsyncIterator[str]:
    """A worker at an address of its own choice, over TLS where it has a certificate."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.bind((host, 0))
    cert, key = (None, None) if pair is None else (pair.cert, pair.key)
    config = uvicorn.Config(
        app,
        log_config=None,
        http="httptools",
        ws="none",
        timeout_graceful_shutdown=2,
        ssl_certfile=cert,
        ssl_keyfile=key,
    )
    server = QuietServer(config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    await eventually(lambda: server.started)
    try:
        place = f"[{host}]" if ":" in host else host
        yield f"{'http' if pair is None else 'https'}://{place}:{sock.getsockname()[1]}"
    finally:
        server.stopping.set()
        await task


@asynccontextmanager
async def pair_of_workers(host: str, pair: Pair | None = None) -> AsyncIterator[dict[str, Any]]:
    """Settings that name a prefill and a decode worker which are served at ``host``."""
    prefill = FakePrefill("prefill-0")
    decode = FakeDecode("decode-0", prefills={"prefill-0": prefill})
    async with served_at(prefill.app(), host, pair) as prefill_url, served_at(decode.app(), host, pair) as decode_url:
        yield {"prefill": [prefill_url], "decode": [decode_url], "health_interval_s": 0.05}
    assert prefill.leases == {}


# --- workers ---


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("has_tls", [True, False], ids=["https", "http"])
async def test_requests_pass_to_workers(host: str, has_tls: bool, authority: Authority, pair: Pair) -> None:
    async with pair_of_workers(host, pair if has_tls else None) as settings:
        parts = build_parts(RouterConfig.model_validate(settings | {"worker_ca_file": authority.ca}))
        async with served_router(parts) as url, httpx.AsyncClient(base_url=url, timeout=10) as http:
            await eventually(lambda: not parts.registry.pools().missing_roles())
            for _ in range(3):
                assert (await http.post("/v1/completions", json=TEXT)).content == FakeDecode("d").whole
                streamed = await http.post("/v1/completions", json=TEXT | {"stream": True})
                assert streamed.content == b"".join(FakeDecode("d").pieces)


async def test_a_worker_with_a_certificate_of_a_stranger_is_not_used(pair: Pair, stranger: Authority) -> None:
    async with pair_of_workers("127.0.0.1", pair) as settings:
        for trust in ({"worker_ca_file": stranger.ca}, {}):
            parts = build_parts(RouterConfig.model_validate(settings | trust))
            async with served_router(parts) as url, httpx.AsyncClient(base_url=url, timeout=10) as http:
                await asyncio.gather(*(parts.prober.probe(worker) for worker in parts.registry.workers()))
                assert len(parts.registry.pools().missing_roles()) == 2
                assert (await http.post("/v1/completions", json=TEXT)).status_code == 503


async def test_a_certificate_must_be_for_the_address_that_is_dialled(authority: Authority, pair: Pair) -> None:
    async with pair_of_workers("127.0.0.1", pair) as settings:
        urls = {role: [settings[role][0].replace("127.0.0.1", "localhost")] for role in ("prefill", "decode")}
        parts = build_parts(RouterConfig.model_validate(settings | urls | {"worker_ca_file": authority.ca}))
        async with served_router(parts):
            await asyncio.gather(*(parts.prober.probe(worker) for worker in parts.registry.workers()))
            assert len(parts.registry.pools().missing_roles()) == 2


# --- clients ---


@pytest.fixture
def tls_files(pair: Pair) -> dict[str, Path]:
    return {"tls_cert_file": pair.cert, "tls_key_file": pair.key}


async def test_clients_are_served_over_tls_streams_and_disconnects_included(
    tls_files: dict[str, Path], trusting: ssl.SSLContext
) -> None:
    async with pair_of_workers("127.0.0.1") as settings:
        config = RouterConfig.model_validate(settings | tls_files)
        parts = build_parts(config)
        async with (
            served_router(parts, server_context(config)) as url,
            httpx.AsyncClient(base_url=url, timeout=10, verify=trusting) as http,
        ):
            assert url.startswith("https://")
            await eventually(lambda: not parts.registry.pools().missing_roles())
            assert (await http.post("/v1/completions", json=TEXT)).content == FakeDecode("d").whole
            async with http.stream("POST", "/v1/completions", json=TEXT | {"stream": True}) as answer:
                await anext(answer.aiter_raw())
            long = TEXT | {"stream": True, "prompt": "x" * 300_000}
            assert (await http.post("/v1/completions", json=long)).content == b"".join(FakeDecode("d").pieces)
            await eventually(lambda: parts.active.num == 0)


async def test_plain_http_to_a_tls_port_gets_no_answer(tls_files: dict[str, Path]) -> None:
    config = RouterConfig.model_validate(tls_files)
    async with served_router(build_parts(config), server_context(config)) as url, httpx.AsyncClient() as http:
        with pytest.raises(httpx.TransportError):
            await http.get(url.replace("https", "http") + "/health")


async def test_both_ports_of_a_process_speak_tls(tls_files: dict[str, Path], trusting: ssl.SSLContext) -> None:
    control_url = unused_url()
    flags = [word for key, file in tls_files.items() for word in (f"--{key.replace('_', '-')}", str(file))]
    async with router_process("--metrics-port", port_of(control_url), *flags) as (_, url):
        await wait_until_listening(url, control_url)
        async with httpx.AsyncClient(verify=trusting) as http:
            for plain_url in (url, control_url):
                assert (await http.get(plain_url.replace("http", "https") + "/health")).status_code == 200


# --- files ---


@pytest.fixture
def files(authority: Authority, stranger: Authority, pair: Pair, tmp_path: Path) -> dict[str, Path]:
    text = tmp_path / "text"
    text.write_text("no certificate")
    locked = authority.issue("locked", password="hush")
    return {
        "ours": pair.cert,
        "key": pair.key,
        "others key": stranger.issue("x").key,
        "locked": locked.key,
        "text": text,
    }


@pytest.mark.parametrize(
    ("cert", "key"), [("ours", "others key"), ("ours", "text"), ("text", "key"), ("key", "key"), ("ours", "locked")]
)
def test_a_certificate_and_a_key_that_do_not_fit_are_refused_by_name(
    files: dict[str, Path], cert: str, key: str
) -> None:
    with pytest.raises(ConfigError, match=r"^tls_key_file: can't be used with tls_cert_file: ."):
        server_context(RouterConfig(tls_cert_file=files[cert], tls_key_file=files[key]))


@pytest.mark.parametrize("file", ["text", "key"])
def test_a_file_without_certificates_trusts_nobody_and_is_refused(files: dict[str, Path], file: str) -> None:
    with pytest.raises(ConfigError, match=r"^worker_ca_file: holds no usable certificate: ."):
        worker_context(RouterConfig(worker_ca_file=files[file]))


def test_without_files_there_is_no_tls_and_the_systems_trust() -> None:
    assert server_context(RouterConfig()) is None
    assert worker_context(RouterConfig()) is None


async def test_a_worker_that_speaks_plain_http_behind_an_https_url_is_not_used() -> None:
    async with served(FakePrefill("prefill-0").app()) as url:
        parts = build_parts(RouterConfig.model_validate({"prefill": [url.replace("http", "https")]}))
        async with served_router(parts):
            [worker] = parts.registry.workers()
            await parts.prober.probe(worker)
            assert not worker.is_usable

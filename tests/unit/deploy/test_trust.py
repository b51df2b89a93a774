"""A deployment whose router speaks TLS: launcher and workers trust it by the system's roots and ``SSL_CERT_FILE``."""

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from deploy.local import http_client
from deploy.status import StatusError, fetch_status
from tests.certificates import Authority


class Ready(BaseHTTPRequestHandler):
    """Answers as a ready router without workers."""

    def do_GET(self) -> None:
        body = b'{"ready": true, "missing": [], "workers": []}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def url(authority: Authority) -> Iterator[str]:
    pair = authority.issue("router")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_the_launcher_trusts_what_the_variable_names(
    url: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http_client() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(url)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    async with http_client() as client:
        assert (await client.get(url)).status_code == 200


def test_so_does_the_status_command(url: str, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StatusError):
        fetch_status(url, url, {})
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    assert fetch_status(url, url, {})[1]


async def test_so_do_workers(url: str, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their client is httpx as it comes."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    async with httpx.AsyncClient() as client:
        assert (await client.get(url)).status_code == 200

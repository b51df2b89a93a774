"""What a request to a worker looks like on the wire: where its URL points, and the bytes of its head."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from router.worker_client import Headers, header_lines

# A router meets a few URLs for each worker; the bound is for years of workers that come and go.
MAX_KEPT_TARGETS = 4096
# Answers are relayed as they are, so none may be compressed.
FIXED_HEADERS = "accept-encoding: identity\r\nuser-agent: tandem-router\r\n"
# What a path or a query may hold unescaped (RFC 3986), and the percent sign of what is escaped already.
SAFE_IN_TARGET = "/%:@!$&'()*+,;=-._~?"


class Origin(NamedTuple):
    """What a connection leads to."""

    is_tls: bool
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Target:
    """A URL, ready to be asked for."""

    origin: Origin
    request_uri: str
    fixed_head: bytes
    """All after the method: the rest of the request line and the headers that every request to this URL has."""


@lru_cache(maxsize=MAX_KEPT_TARGETS)
def parse_target(url: str) -> Target:
    """Raises: ValueError: no http or https URL with a host and a usable port."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an http or https URL with a host")
    is_tls = parts.scheme == "https"
    usual_port = 443 if is_tls else 80
    port = usual_port if parts.port is None else parts.port
    request_uri = quote(parts.path or "/", safe=SAFE_IN_TARGET) + (
        f"?{quote(parts.query, safe=SAFE_IN_TARGET)}" if parts.query else ""
    )
    host_header = _spelled(parts.hostname) + ("" if port == usual_port else f":{port}")
    head = f"{request_uri} HTTP/1.1\r\nhost: {host_header}\r\n{FIXED_HEADERS}"
    return Target(Origin(is_tls, parts.hostname, port), request_uri, head.encode("latin-1"))


def _spelled(host: str) -> str:
    if ":" not in host:
        return host.encode("idna").decode("ascii")
    # A zone names an interface of this machine and means nothing to the other side.
    return f"[{host.partition('%')[0]}]"


def request_head(method: bytes, target: Target, headers: Headers, num_body_bytes: int) -> bytes:
    """The request line and all headers, with the blank line after them.

    Raises:
        ValueError: a header that could be read as more than one, or that is not Latin-1.
    """
    lines = headers if isinstance(headers, bytes) else header_lines(headers)
    if method == b"GET":
        return b"%b %b%b\r\n" % (method, target.fixed_head, lines)
    return b"%b %b%bcontent-length: %d\r\n\r\n" % (method, target.fixed_head, lines, num_body_bytes)

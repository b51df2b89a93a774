"""Small HTTP exchanges outside the measured load: health, the mocks' counts, workers' registration."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 5.0
POLL_S = 0.05
# Loopback must not go through a proxy of the environment.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def call(port: int, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
    """One exchange with this machine: status and body; status 0 where nothing answers."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with _opener.open(request, timeout=TIMEOUT_S) as answer:
            return int(answer.status), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return 0, b""


def wait_until(is_so: Callable[[], bool], limit_s: float, what: str) -> None:
    """Poll. Raises: TimeoutError: not within ``limit_s``; names ``what``."""
    give_up_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"{what}: not within {limit_s:g} s")
        time.sleep(POLL_S)

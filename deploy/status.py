"""Asks a running router whether it is ready and which workers it knows, for ``tandem status``."""

from collections.abc import Mapping
from typing import Any

import httpx

from wire.worker_config import CLUSTER_TOKEN_ENV

TIMEOUT_S = 5.0


def fetch_status(router_url: str, environ: Mapping[str, str], transport: httpx.BaseTransport | None = None) -> str:
    raise NotImplementedError

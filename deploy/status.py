"""Asks a running router whether it is ready and which workers it knows, for ``tandem status``."""

from collections.abc import Mapping
from typing import Any

import httpx

from wire.worker_config import CLUSTER_TOKEN_ENV

TIMEOUT_S = 5.0
ROW = "  {:<14} {:<8} {:<9} {:>8} {:>8} {:>7} {:>7}  {}"


class StatusError(Exception):
    """There is no router at the address, or what answers is none."""


def fetch_status(
    router_url: str, environ: Mapping[str, str], transport: httpx.BaseTransport | None = None
) -> tuple[str, bool]:
    """A text for people, and whether the router is ready.

    The table of workers needs the cluster token in ``environ``; without it the text says so. Raises StatusError.
    """
    token = environ.get(CLUSTER_TOKEN_ENV, "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx.Client(
            base_url=router_url, headers=headers, timeout=TIMEOUT_S, trust_env=False, transport=transport
        ) as client:
            readiness, workers = client.get("/ready"), client.get("/internal/workers")
            is_ready, missing = readiness.json()["ready"], readiness.json()["missing"]
            known = workers.json()["workers"] if workers.status_code == httpx.codes.OK else None
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise StatusError(f"no router answers at {router_url}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StatusError(f"what answers at {router_url} is not a tandem router") from error
    state = "ready" if is_ready else f"not ready: no usable {' and no usable '.join(missing)} worker"
    return "\n".join([f"{router_url} is {state}", *_worker_lines(known, workers.status_code)]), is_ready


def _worker_lines(workers: list[dict[str, Any]] | None, status_code: int) -> list[str]:
    if workers is None:
        return [f"  (its workers are shown to holders of {CLUSTER_TOKEN_ENV}; the router answered {status_code})"]
    if not workers:
        return ["  no worker is known"]
    lines = [ROW.format("worker", "role", "state", "running", "waiting", "leases", "kv use", "url")]
    for worker in workers:
        status = worker["status"]
        state = "suspect" if worker["is_suspect"] else status["state"]
        usage = f"{status['kv_cache_usage']:.0%}"
        counts = [status[key] for key in ("num_requests_running", "num_requests_waiting", "num_leases")]
        lines.append(ROW.format(worker["worker_id"], worker["role"], state, *counts, usage, worker["url"]))
    return lines

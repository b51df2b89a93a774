"""Asks a running router whether it is ready and which workers it knows, for ``tandem status``."""

import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from deploy.run_dir import ADDRESSES
from wire.worker_config import CLUSTER_TOKEN_ENV

TIMEOUT_S = 5.0
ROW = "  {:<14} {:<8} {:<9} {:>8} {:>8} {:>7} {:>7}  {}"


class StatusError(Exception):
    """There is no router at the address, or what answers is none."""


def read_addresses(run_dir: Path) -> tuple[str, str]:
    """The URLs of API and control routes of what runs, or ran last, in ``run_dir``. Raises StatusError."""
    try:
        addresses = json.loads((run_dir / f"{ADDRESSES}.json").read_text(encoding="utf-8"))
        return str(addresses["api"]), str(addresses["control"])
    except FileNotFoundError:
        raise StatusError(f"no deployment has run in {run_dir}; name a router by --router URL") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StatusError(f"{run_dir} does not tell where its router is ({error}); name it by --router URL") from error


def fetch_status(
    router_url: str, control_url: str, environ: Mapping[str, str], transport: httpx.BaseTransport | None = None
) -> tuple[str, bool]:
    """A text for people, and whether the router is ready.

    The table of workers is of the control routes, and needs the cluster token in ``environ``; where they are not or
    that is not, the text says so. Raises StatusError.
    """
    token = environ.get(CLUSTER_TOKEN_ENV, "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx.Client(
            headers=headers,
            timeout=TIMEOUT_S,
            trust_env=False,
            transport=transport,
            verify=ssl.create_default_context(),  # the system's roots and SSL_CERT_FILE
        ) as client:
            readiness, workers = client.get(f"{router_url}/ready"), client.get(f"{control_url}/internal/workers")
            is_ready, missing = readiness.json()["ready"], readiness.json()["missing"]
            known = workers.json()["workers"] if workers.status_code == httpx.codes.OK else None
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise StatusError(f"no router answers at {router_url}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StatusError(f"what answers at {router_url} is not a tandem router") from error
    lacks = f"no usable {' and no usable '.join(missing)} worker" if missing else "it is stopping"
    state = "ready" if is_ready else f"not ready: {lacks}"
    lines = [f"{router_url} is {state}"]
    if control_url != router_url:
        lines.append(f"  its metrics: {control_url}/metrics")
    return "\n".join([*lines, *_worker_lines(known, workers.status_code)]), is_ready


def _worker_lines(workers: list[dict[str, Any]] | None, status_code: int) -> list[str]:
    if workers is None and status_code == httpx.codes.NOT_FOUND:
        return ["  (its workers are shown on its metrics port: --router URL with that one)"]
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

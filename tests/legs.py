"""Plays the router's part towards real workers: a prefill leg, then a decode leg with its handoff."""

import time
import uuid
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.stack import MODEL, TOKEN

HEADERS = {"authorization": f"Bearer {TOKEN}"}
GREEDY = {"model": MODEL, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
NUM_TOKENS = 8


def prefill(url: str, prompt: list[int], **wish: Any) -> dict[str, Any]:
    """The handoff of ``prompt``, computed by the prefill worker at ``url``; ``wish`` goes into the ask."""
    ask = {"do_remote_decode": True, "handoff_id": uuid.uuid4().hex, **wish}
    answer = send(url, GREEDY | {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": ask})
    assert answer.status_code == 200, answer.text
    handoff = answer.json()["kv_transfer_params"]
    assert isinstance(handoff, dict), answer.text
    return handoff


def decode(
    url: str, prompt: list[int], handoff: dict[str, Any] | None, timeout_s: float = 60.0, **options: Any
) -> httpx.Response:
    """The decode worker's answer to ``prompt`` with ``handoff``."""
    body = GREEDY | {"prompt": prompt, "max_tokens": NUM_TOKENS, **options}
    return send(url, body if handoff is None else body | {"kv_transfer_params": handoff}, timeout_s)


def send(url: str, body: dict[str, Any], timeout_s: float = 60.0) -> httpx.Response:
    """One completion request, as the cluster."""
    return httpx.post(f"{url}/v1/completions", json=body, headers=HEADERS, timeout=timeout_s)


def tokens_of(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    tokens: list[int] = answer.json()["choices"][0]["token_ids"]
    return tokens


def num_leases(url: str) -> int:
    status = httpx.get(f"{url}/tandem/status", headers=HEADERS, timeout=30).raise_for_status()
    return int(status.json()["status"]["num_leases"])


def no_lease_within(url: str, seconds: float) -> bool:
    """Whether the worker at ``url`` holds no handoff any more after at most ``seconds``."""
    deadline = time.monotonic() + seconds
    while (left := num_leases(url)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left == 0


def samples(url: str) -> dict[str, float]:
    """``/metrics`` summed up: by ``name``, and by ``name:label`` for each reason, state, kind and source."""
    sums: dict[str, float] = {}
    text = httpx.get(f"{url}/metrics", headers=HEADERS, timeout=30).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            names = [sample.name]
            names += [
                f"{sample.name}:{sample.labels[k]}" for k in ("reason", "state", "kind", "source") if k in sample.labels
            ]
            for name in names:
                sums[name] = sums.get(name, 0.0) + sample.value
    return sums


def counted_within(url: str, name: str, least: float, seconds: float) -> bool:
    """Whether that sample is at least ``least`` soon: what an engine counts shows up with one of its next steps."""
    deadline = time.monotonic() + seconds
    while (value := samples(url)[name]) < least and time.monotonic() < deadline:
        time.sleep(0.05)
    return value >= least


def paths(control_url: str) -> dict[str, float]:
    """Requests that went each way through the router, by reason, as its metrics have them."""
    found = samples(control_url)
    prefix = "tandem_router_path_total:"
    return {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}

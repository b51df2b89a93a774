"""Results of bench.router made up for tests."""

from typing import Any

UNITS = {"small32": "request", "small128": "request", "stream": "token", "big": "request", "paced": "request"}
NO_FAULTS = {"no_handoff": 0, "wrong_handoff": 0, "other_prompt": 0, "dirty_prefill": 0, "bad_request": 0, "live": 0}


def one_round(*, cpu_us: float, unit: str, ttft_ms: float = 1.0, rss_mb: float = 60.0) -> dict[str, Any]:
    """A round of 1,000 requests of 100 tokens, with that much CPU time a request or a token."""
    num_tokens = 100_000 if unit == "token" else 0
    return {
        "num_requests": 1000,
        "num_tokens": num_tokens,
        "errors": {},
        "ttft_ms": {"p50": ttft_ms, "p99": 2 * ttft_ms, "max": 9.0},
        "gap_ms": {"p50": 10.0, "p99": 11.0, "max": 12.0},
        "wall_s": 2.0,
        "cpu_s": {"router": cpu_us * (num_tokens or 1000) / 1e6, "mocks": 0.4, "load": 0.2},
        "rss_mb": [rss_mb],
        "engines": dict(NO_FAULTS),
    }


def good_result() -> dict[str, Any]:
    """Two rounds of each case that keep every demand of must-2 with room to spare."""
    cases = []
    for name, unit in UNITS.items():
        routers = {
            "direct": [one_round(cpu_us=0, unit=unit, ttft_ms=0.2) | {"rss_mb": []} for _ in range(2)],
            "tandem": [one_round(cpu_us=90, unit=unit, ttft_ms=0.5) for _ in range(2)],
            "vllm-router": [one_round(cpu_us=100, unit=unit, ttft_ms=0.6, rss_mb=120) for _ in range(2)],
        }
        cases.append({"name": name, "about": "a load", "unit": unit, "routers": routers})
    return {
        "command": "python -m bench.router",
        "commit": "c0ffee",
        "hardware": "2 CPU cores",
        "versions": {"vllm-router": "0.1.17"},
        "cores": {"router": 1, "load": 0, "may_halt": False},
        "load_average": [0.1, 1.2],
        "pauses_ms": [{"p50": 0.0, "p99": 0.1, "max": 0.4}, {"p50": 0.0, "p99": 0.2, "max": 0.3}],
        "cases": cases,
    }


def rounds_of(result: dict[str, Any], case: str, router: str = "tandem") -> list[dict[str, Any]]:
    (found,) = [one for one in result["cases"] if one["name"] == case]
    rounds: list[dict[str, Any]] = found["routers"][router]
    return rounds

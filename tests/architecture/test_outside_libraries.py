"""Each outside library is spoken to in few named places, so that a change of it stays there."""

from fnmatch import fnmatch

import pytest

from tests.architecture.tree import imported_modules, parse, source_files

# Library -> the files that may import it, at the top or inside a function.
SPEAKERS = {
    "nixl": ["kv_transfer/agent.py", "bench/transfer/pages_peer.py"],  # the latter posts what rows are compared with
    "ray": ["deploy/*"],
    "prometheus_client": [
        "*/metrics.py",
        "router/lifecycle_metrics.py",
        "router/process_metrics.py",
        "router/metric_kinds.py",
        "vllm_engine/handoff_guard.py",
        "vllm_engine/state.py",  # reads the engine's own counters for the heartbeat
        "bench/*",
    ],
    "vllm": [
        "vllm_engine/server.py",
        "vllm_engine/state.py",
        "vllm_engine/routes.py",
        "vllm_engine/ttft_scheduler.py",
        "msa_model/*",
        "kv_transfer/connector*.py",
        "kv_transfer/cache_row.py",
        "kv_transfer/step.py",
        "kv_transfer/prefill_side.py",
        "kv_transfer/decode_side.py",
        "kv_transfer/settings.py",
        "bench/transfer/vllm_peer.py",  # drives vLLM's own connector
        "bench/prefill/rank*.py",  # run a rank's model without an engine
        "bench/prefill/lone_rank.py",
    ],
    "zmq": ["kv_transfer/side_channel.py"],
    "msgspec": ["kv_transfer/handshake.py", "vllm_engine/handoff_guard.py", "bench/transfer/vllm_peer.py"],
    "torch": ["msa_model/*", "kv_transfer/cache_row.py", "kv_transfer/connector*.py", "bench/*"],
    "triton": ["msa_model/ops/*", "bench/kernels/*"],
    "transformers": ["msa_model/*"],
    "httpx": ["vllm_engine/*", "deploy/*", "bench/*"],
    # Beside the router itself, both ends of what it relays in the benchmark.
    "httptools": [
        "router/http1_connection.py",
        "router/client_protocol.py",
        "bench/router/engines.py",
        "bench/router/load.py",
    ],
    "uvicorn": ["router/serving.py", "router/client_protocol.py", "router/client_cycle.py", "bench/*"],
    "uvloop": ["router/serving.py", "vllm_engine/server.py", "bench/router/engines.py", "bench/router/run.py"],
    "opentelemetry": ["router/tracing.py"],
    "fastapi": ["router/*", "vllm_engine/*", "bench/*"],
    "yaml": ["router/config.py", "deploy/spec_file.py", "bench/*"],
}


@pytest.mark.parametrize("library", sorted(SPEAKERS))
def test_only_its_named_files_import_a_library(library: str) -> None:
    strangers = [
        str(path)
        for path in source_files()
        if any(name.split(".")[0] == library for name in imported_modules(parse(path)))
        and not any(fnmatch(str(path), pattern) for pattern in SPEAKERS[library])
    ]
    assert strangers == []


@pytest.mark.parametrize("library", ["nixl", "vllm", "prometheus_client", "httpx", "httptools"])
def test_the_search_finds_the_libraries_that_are_in_use(library: str) -> None:
    assert any(name.split(".")[0] == library for path in source_files() for name in imported_modules(parse(path)))

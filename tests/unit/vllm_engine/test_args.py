"""vLLM's arguments follow from the worker's configuration alone."""

import json
import subprocess
import sys
from typing import Any

from vllm_engine.args import vllm_args, vllm_env
from wire.worker_config import WorkerConfig

CONFIG: dict[str, Any] = {
    "worker_id": "d",
    "role": "decode",
    "model": "/models/nano",
    "served_model_name": "nano",
    "port": 8200,
    "kv_cache_bytes": 1 << 27,
    "enforce_eager": True,
    "kv_transfer": {"port": 8250, "lease_s": 7, "load_failure_policy": "fail"},
}


def value(args: list[str], flag: str) -> str:
    return args[args.index(flag) + 1]


def test_the_connector_gets_role_policy_and_settings() -> None:
    transfer = json.loads(value(vllm_args(WorkerConfig.model_validate(CONFIG), "d-1"), "--kv-transfer-config"))
    assert transfer["kv_role"] == "kv_consumer"
    assert transfer["engine_id"] == "d-1"
    assert transfer["kv_load_failure_policy"] == "fail"
    assert transfer["kv_connector_extra_config"]["lease_s"] == 7
    assert transfer["kv_connector_extra_config"]["port"] == 8250


def test_user_arguments_come_last_so_that_they_win() -> None:
    config = WorkerConfig.model_validate(CONFIG | {"extra_vllm_args": ["--dtype", "bfloat16"]})
    assert vllm_args(config, "d-1", ("--enable-chunked-prefill",))[-2:] == ["--dtype", "bfloat16"]


def test_one_rank_needs_no_extra_process() -> None:
    assert value(vllm_args(WorkerConfig.model_validate(CONFIG), "d"), "--distributed-executor-backend") == "uni"
    two = WorkerConfig.model_validate(CONFIG | {"parallelism": {"tp_size": 2}})
    assert value(vllm_args(two, "d"), "--distributed-executor-backend") == "mp"
    assert value(vllm_args(two, "d"), "--tensor-parallel-size") == "2"


def test_cpu_threads_are_bounded_and_not_pinned() -> None:
    env = vllm_env(WorkerConfig.model_validate(CONFIG | {"num_threads": 2}))
    assert env["OMP_NUM_THREADS"] == "2"
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "OMP_NUM_THREADS" not in vllm_env(WorkerConfig.model_validate(CONFIG | {"device": "cuda"}))


def test_the_arguments_are_known_without_importing_vllm() -> None:
    code = "import sys, vllm_engine.args; sys.exit('vllm' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nixl_spins_on_a_core_only_beside_a_gpu_unless_told_otherwise() -> None:
    def is_on(change: dict[str, Any]) -> bool:
        config = WorkerConfig.model_validate(CONFIG | change)
        extra = json.loads(value(vllm_args(config, "d"), "--kv-transfer-config"))["kv_connector_extra_config"]
        return bool(extra["enable_progress_thread"])

    assert not is_on({})
    assert is_on({"device": "cuda"})
    assert is_on({"kv_transfer": {"port": 8250, "enable_progress_thread": True}})

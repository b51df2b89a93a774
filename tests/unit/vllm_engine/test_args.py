"""vLLM's arguments follow from the worker's configuration alone."""

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kv_transfer.settings import ConnectorConfig
from msa_model.split_settings import split_settings
from tests.unit.vllm_engine.factories import FINGERPRINT, KEY, TOKEN, worker_config
from vllm_engine.args import CONNECTOR, CONNECTOR_MODULE, last_value, vllm_args, vllm_env
from wire.prefill_queue import PREFILL_QUEUE_KEY
from wire.token_split import TokenSplit

PORT = {"port": 8250}


def args_of(role_args: tuple[str, ...] = (), **changes: Any) -> list[str]:
    return vllm_args(worker_config(**changes), "decode-0-life1", FINGERPRINT, role_args)


def value(args: list[str], flag: str) -> str:
    return args[args.index(flag) + 1]


def transfer_config(**changes: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(value(args_of(**changes), "--kv-transfer-config"))
    return parsed


def test_the_connector_gets_role_policy_and_settings() -> None:
    transfer = transfer_config()
    assert (transfer["kv_connector"], transfer["kv_connector_module_path"]) == (CONNECTOR, CONNECTOR_MODULE)
    assert transfer["kv_role"] == "kv_consumer"
    assert transfer["engine_id"] == "decode-0-life1"
    assert transfer["kv_load_failure_policy"] == "fail"
    assert transfer_config(role="prefill")["kv_role"] == "kv_producer"


def test_the_connector_s_own_settings_are_read_back_as_they_were_given() -> None:
    extra = transfer_config(kv_transfer=PORT | {"lease_s": 7, "extra_peers": ["h:1"]})["kv_connector_extra_config"]
    read = ConnectorConfig.model_validate(extra)
    assert (read.lease_s, read.port, read.extra_peers) == (7, 8250, ("h:1",))
    assert read.fingerprint == FINGERPRINT


def test_no_secret_is_on_the_command_line() -> None:
    assert KEY not in " ".join(args_of())
    assert TOKEN not in " ".join(args_of())


def test_the_connector_that_is_named_is_there() -> None:
    found = importlib.util.find_spec(CONNECTOR_MODULE)
    assert found is not None
    assert found.origin is not None
    assert f"class {CONNECTOR}(" in Path(found.origin).read_text(encoding="utf-8")


def test_user_arguments_come_last_so_that_they_win() -> None:
    args = args_of(("--enable-chunked-prefill",), extra_vllm_args=["--dtype", "bfloat16"])
    assert args[-2:] == ["--dtype", "bfloat16"]
    assert "--enable-chunked-prefill" in args


def test_one_rank_needs_no_extra_process() -> None:
    assert value(args_of(), "--distributed-executor-backend") == "uni"
    two = args_of(parallelism={"tp_size": 2})
    assert value(two, "--distributed-executor-backend") == "mp"
    assert value(two, "--tensor-parallel-size") == "2"


def test_experts_stay_whole_where_it_is_asked_for() -> None:
    assert "--enable-expert-parallel" in args_of(parallelism={"tp_size": 2, "enable_ep": True})
    assert "--enable-expert-parallel" not in args_of(parallelism={"tp_size": 2})


@pytest.mark.parametrize(
    ("args", "found"),
    [
        ([], None),
        (["--dtype"], None),
        (["--dtype", "a", "--dtype=b"], "b"),
        (["--dtype=b", "--d_type", "c", "--dtype", "a"], "a"),
        (["--hf_overrides", "{}"], None),
    ],
)
def test_the_last_value_of_an_argument_counts(args: list[str], found: str | None) -> None:
    assert last_value("--dtype", args) == found


def test_underscores_in_an_argument_are_dashes_to_vllm() -> None:
    assert last_value("--hf-overrides", ["--hf_overrides={}"]) == "{}"


def test_cpu_threads_are_bounded_and_not_pinned() -> None:
    env = vllm_env(worker_config(num_threads=2))
    assert env["OMP_NUM_THREADS"] == "2"
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "OMP_NUM_THREADS" not in vllm_env(worker_config(device="cuda"))


def test_the_arguments_are_known_without_importing_vllm() -> None:
    code = "import sys, vllm_engine.args; sys.exit('vllm' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nixl_spins_on_a_core_only_where_it_is_told_to(device: str) -> None:
    def is_on(**changes: Any) -> bool:
        return bool(transfer_config(device=device, **changes)["kv_connector_extra_config"]["enable_progress_thread"])

    assert not is_on()
    assert is_on(kv_transfer=PORT | {"enable_progress_thread": True})


def test_split_tokens_reach_the_model_and_run_without_graphs() -> None:
    assert not split_settings(json.loads(value(args_of(role="prefill"), "--additional-config"))).is_on
    args = args_of(role="prefill", parallelism={"tp_size": 2}, token_split={"enable_sp": True}, enforce_eager=False)
    assert split_settings(json.loads(value(args, "--additional-config"))) == TokenSplit(enable_sp=True)
    assert "--enforce-eager" in args


def test_a_prefill_worker_gets_the_queue_that_it_is_configured_with() -> None:
    args = args_of(role="prefill", prefill_queue={"max_age_s": 5})
    module, _, name = value(args, "--scheduler-cls").rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))
    assert json.loads(value(args, "--additional-config")) == {PREFILL_QUEUE_KEY: {"policy": "ttft", "max_age_s": 5}}


@pytest.mark.parametrize("changes", [{"role": "decode"}, {"role": "prefill", "prefill_queue": {"policy": "fcfs"}}])
def test_others_keep_the_order_of_vllm(changes: dict[str, Any]) -> None:
    assert not {"--scheduler-cls", "--additional-config"} & set(args_of(**changes))

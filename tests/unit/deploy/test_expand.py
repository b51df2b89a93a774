"""A spec expands into processes with addresses that fit together."""

import random
from pathlib import Path
from typing import Any

import pytest

from deploy.expand import DeploymentPlan, expand
from deploy.spec import DeploymentSpec
from deploy.spec_file import SpecError
from wire.worker_config import WorkerConfig


def plan(environ: dict[str, str] | None = None, **sections: Any) -> DeploymentPlan:
    base = {"name": "small", "model": "nano", "served_model_name": "m", "router": {"port": "auto"}}
    return expand(DeploymentSpec.model_validate({**base, **sections}), environ or {}, random.Random(7))


def test_the_router_comes_first_and_each_replica_is_a_process() -> None:
    names = [process.name for process in plan(prefill={"replicas": 2}).processes]
    assert names == ["router", "prefill-0", "prefill-1", "decode-0"]


def test_no_port_is_given_out_twice() -> None:
    made = plan(prefill={"replicas": 4}, decode={"replicas": 4})
    ports = [port for process in made.processes for _, port in process.listens]
    assert len(ports) == 2 + 2 * 8 == len(set(ports))


def test_fixed_ports_count_up_from_their_base() -> None:
    made = plan(decode={"replicas": 2, "port": 9100, "kv_port": 9200})
    assert [p.listens for p in made.processes[2:]] == [
        (("127.0.0.1", 9100), ("127.0.0.1", 9200)),
        (("127.0.0.1", 9101), ("127.0.0.1", 9201)),
    ]


def test_each_worker_gets_a_configuration_that_the_worker_accepts() -> None:
    made = plan(kv_transfer={"lease_s": 7}, timeouts={"drain_s": 3}, decode={"engine": {"max_num_seqs": 2}})
    prefill, decode = (WorkerConfig.model_validate(process.config) for process in made.processes[1:])
    assert prefill.router_url == decode.router_url == made.control_url
    assert prefill.url == made.processes[1].url
    assert (prefill.kv_transfer.lease_s, prefill.drain_timeout_s) == (7, 3)
    assert (prefill.max_num_seqs, decode.max_num_seqs) == (16, 2)


def test_a_groups_own_transfer_keys_reach_its_workers_alone() -> None:
    made = plan(
        kv_transfer={"lease_s": 7, "read_timeout_s": 9},
        decode={"kv_transfer": {"lease_s": 8, "required_transports": ["tcp"], "on_wrong_transport": "warn"}},
    )
    prefill, decode = (WorkerConfig.model_validate(process.config).kv_transfer for process in made.processes[1:])
    assert (prefill.lease_s, prefill.read_timeout_s, prefill.required_transports) == (7, 9, ())
    assert (decode.lease_s, decode.read_timeout_s, decode.required_transports) == (8, 9, ("tcp",))
    assert (prefill.on_wrong_transport, decode.on_wrong_transport) == ("refuse", "warn")


def test_the_router_names_its_settings_as_the_spec_does() -> None:
    command = plan().processes[0].command
    assert command[command.index("--key-prefix") + 1] == "router.settings."


def test_the_router_gets_its_address_and_the_settings_passed_through() -> None:
    router = plan(router={"port": 8123, "metrics_port": 8124, "settings": {"max_body_bytes": 1000}}).processes[0]
    address = {"host": "127.0.0.1", "port": 8123, "metrics_port": 8124}
    assert router.config == address | {"max_body_bytes": 1000, "shutdown_timeout_s": 30, "no_prefill": "decode_only"}
    assert router.command[-6:] == ("--host", "127.0.0.1", "--port", "8123", "--metrics-port", "8124")
    assert router.listens == (("127.0.0.1", 8123), ("127.0.0.1", 8124))


def test_metrics_and_workers_have_a_port_of_their_own_unless_told_otherwise() -> None:
    made = plan(router={"port": 8123})
    assert made.router_url == "http://127.0.0.1:8123" != made.control_url
    made = plan(router={"port": 8123, "metrics_port": None})
    assert made.router_url == made.control_url == "http://127.0.0.1:8123"
    assert made.processes[0].command[-4:] == ("--host", "127.0.0.1", "--port", "8123")


def test_the_router_may_be_several_processes_which_have_the_metrics_port_that_they_need() -> None:
    router = plan(router={"settings": {"processes": 4}}).processes[0]
    assert router.config["processes"] == 4
    assert router.config["metrics_port"] == router.listens[1][1]


@pytest.mark.parametrize(
    ("environ", "settings"), [({"TANDEM_ROUTER_TLS_CERT_FILE": "c"}, {}), ({}, {"tls_cert_file": "c"})]
)
def test_a_router_with_a_certificate_is_dialled_over_tls(environ: dict[str, str], settings: dict[str, str]) -> None:
    made = plan(environ, router={"port": 8123, "metrics_port": 8124, "settings": settings})
    assert (made.router_url, made.control_url) == ("https://127.0.0.1:8123", "https://127.0.0.1:8124")
    assert WorkerConfig.model_validate(made.processes[1].config).router_url == made.control_url


def test_cpu_engines_run_unbound_with_their_own_thread_count_and_offline() -> None:
    env = plan(prefill={"engine": {"num_threads": 3}}).processes[1].env
    assert (env["OMP_NUM_THREADS"], env["VLLM_CPU_OMP_THREADS_BIND"], env["HF_HUB_OFFLINE"]) == ("3", "nobind", "1")


def test_a_group_adds_to_the_environment_of_its_workers_only() -> None:
    made = plan(prefill={"env": {"UCX_TLS": "tcp"}})
    assert ["UCX_TLS" in process.env for process in made.processes] == [False, True, False]


def test_gpus_are_given_out_in_order_and_never_twice() -> None:
    made = plan(engine={"device": "cuda"}, prefill={"replicas": 2, "parallelism": {"tp_size": 2}})
    assert [p.env.get("CUDA_VISIBLE_DEVICES") for p in made.processes] == [None, "0,1", "2,3", "4"]


def test_only_gpus_that_the_environment_lists_are_used() -> None:
    made = plan({"CUDA_VISIBLE_DEVICES": "5,GPU-abc"}, engine={"device": "cuda"})
    assert [p.env.get("CUDA_VISIBLE_DEVICES") for p in made.processes[1:]] == ["5", "GPU-abc"]


def test_too_few_gpus_stop_the_start() -> None:
    with pytest.raises(SpecError, match="need more GPUs"):
        plan({"CUDA_VISIBLE_DEVICES": "0"}, engine={"device": "cuda"})


def test_paths_in_configurations_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert plan().processes[1].config["model"] == str(tmp_path / "build" / "nano")

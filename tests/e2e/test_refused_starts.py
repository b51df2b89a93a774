"""Workers and routers that could not serve right are refused when they start, by name and with both sides' values."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import legs
from tests.e2e.conftest import MAX_MODEL_LEN
from tests.stack import HANDOFF_KEY, MODEL, Stack, free_port, openai_client, stop
from tests.workers import start_worker, static_router, worker_config
from wire.handoff import HandoffKeys
from wire.worker_config import EXIT_CONFIG, EXIT_REASON_PREFIX

pytestmark = pytest.mark.usefixtures("nothing_is_left")

START_LIMIT_S = 60.0


def refusal_of(config: dict[str, Any], folder: Path, **env: str) -> str:
    """What a worker writes that is to end with EXIT_CONFIG before it loads its model."""
    worker = start_worker(config, folder, **env)
    try:
        assert worker.process.wait(START_LIMIT_S) == EXIT_CONFIG
    finally:
        stop(worker.process)
    text = worker.log.read_text()
    assert "KV rows" not in text, "it was refused only after the model was loaded"
    return text


def test_a_worker_that_fits_no_peer_is_refused(stack: Stack, tmp_path: Path) -> None:
    """Case 34: named with both sides' values, before minutes are spent on a model."""
    config = worker_config("decode", stack.checkpoint, max_model_len=2048, router_url=stack.control_url)
    assert f"max_model_len differs: 2048 on decode-alone, {MAX_MODEL_LEN} on prefill-0" in refusal_of(config, tmp_path)


def test_an_address_that_each_peer_would_take_for_itself_is_refused(stack: Stack, tmp_path: Path) -> None:
    """Case 36."""
    config = worker_config("decode", stack.checkpoint, kv_transfer={"host": "0.0.0.0", "port": free_port()})
    text = refusal_of(config, tmp_path)
    assert "kv_transfer.host" in text
    assert "0.0.0.0" in text


def test_a_worker_without_a_handoff_key_is_refused(stack: Stack, tmp_path: Path) -> None:
    text = refusal_of(worker_config("prefill", stack.checkpoint), tmp_path, TANDEM_HANDOFF_KEY="")
    assert "TANDEM_HANDOFF_KEY" in text


@pytest.mark.parametrize("token", ["", "another token"])
def test_a_worker_without_the_router_s_token_is_refused(stack: Stack, tmp_path: Path, token: str) -> None:
    config = worker_config("decode", stack.checkpoint, router_url=stack.control_url)
    assert "TANDEM_CLUSTER_TOKEN" in refusal_of(config, tmp_path, TANDEM_CLUSTER_TOKEN=token)


def test_a_worker_that_others_can_reach_needs_a_token(stack: Stack, tmp_path: Path) -> None:
    config = worker_config("decode", stack.checkpoint, host="0.0.0.0", advertise_url="http://10.0.0.7:8200")
    assert "TANDEM_CLUSTER_TOKEN is not set" in refusal_of(config, tmp_path, TANDEM_CLUSTER_TOKEN="")


def test_a_worker_with_another_handoff_key_is_refused(stack: Stack, tmp_path: Path) -> None:
    """Else requests would go to it first, as it is idle, and each would be refused there."""
    config = worker_config("decode", stack.checkpoint, router_url=stack.control_url)
    text = refusal_of(config, tmp_path, TANDEM_HANDOFF_KEY="key of another deployment")
    mine, theirs = HandoffKeys("key of another deployment").signs, HandoffKeys(HANDOFF_KEY).signs
    assert f"ids of TANDEM_HANDOFF_KEY don't pair: {mine} on decode-alone, {theirs} on prefill-0" in text


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--kv-transfer-config", "{}"], "kv_connector is None"),
        (
            ["--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'],
            "kv_connector is NixlConnector",
        ),
        (["--kv-offloading-size", "1"], "OffloadingConnector"),
    ],
    ids=["none", "stock", "offloading"],
)
def test_a_worker_whose_engine_would_lack_our_connector_is_refused(
    stack: Stack, tmp_path: Path, args: list[str], reason: str
) -> None:
    """Case 35, for our own workers: all would answer 200, and prefill would be paid twice."""
    config = worker_config("decode", stack.checkpoint, router_url=stack.control_url, extra_vllm_args=args)
    [told] = [line for line in refusal_of(config, tmp_path).splitlines() if line.startswith(EXIT_REASON_PREFIX)]
    assert reason in told
    assert "extra_vllm_args" in told


def test_a_checkpoint_that_is_not_what_it_says_is_refused_before_an_engine_is_built(
    stack: Stack, tmp_path: Path
) -> None:
    """A layer more than there is: 47 tensors that no file has."""
    odd = tmp_path / "odd"
    shutil.copytree(stack.checkpoint, odd)
    values = json.loads((odd / "config.json").read_text())
    sparse = values["sparse_attention_config"]
    values |= {"num_hidden_layers": 5, "moe_layer_freq": [*values["moe_layer_freq"], 0]}
    values["sparse_attention_config"] = sparse | {"sparse_attention_freq": None, "sparse_disable_index_value": None}
    (odd / "config.json").write_text(json.dumps(values))
    text = refusal_of(worker_config("prefill", odd), tmp_path)
    assert "missing: model.layers.4." in text
    assert "vllm" not in text.split(EXIT_REASON_PREFIX)[0], "an engine was imported for it"


@pytest.mark.parametrize(
    ("args", "reason"),
    [(["--block-size", "64"], "block_size=64"), (["--kv-cache-dtype", "fp8"], "kv_cache_dtype='fp8'")],
    ids=["block size", "KV dtype"],
)
def test_a_setting_that_the_model_can_not_be_served_with_is_refused_by_key(
    stack: Stack, tmp_path: Path, args: list[str], reason: str
) -> None:
    [told] = refusal_of(worker_config("prefill", stack.checkpoint, extra_vllm_args=args), tmp_path).splitlines()
    assert told.startswith(EXIT_REASON_PREFIX), "no engine was imported for it"
    assert reason in told


def test_engines_without_a_connector_are_an_error_not_a_second_prefill(
    running: tuple[Stack, str], tmp_path: Path
) -> None:
    """Case 35: everything would answer 200, and every prompt would be computed twice."""
    prompt, engine = [300, 301], running[1]
    before = legs.samples(engine)
    by_another_name = engine.replace("127.0.0.1", "localhost")  # the router takes no URL for both roles
    with static_router(tmp_path, [engine], [by_another_name]) as url:
        answer = httpx.post(
            f"{url}/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 2}, timeout=60
        )
        assert answer.status_code == 502
        assert "KV connector" in answer.json()["error"]["message"]
        num_prefills = legs.samples(url)["tandem_router_prefill_without_handoff_total"]
    assert num_prefills >= 1
    time.sleep(0.2)
    after = legs.samples(engine)
    for counter, number in (("prompt_tokens", num_prefills * len(prompt)), ("generation_tokens", num_prefills)):
        assert after[f"vllm:{counter}_total"] - before[f"vllm:{counter}_total"] == number, "decode has worked too"


def test_an_engine_without_our_connector_never_becomes_prefill_for_our_decode(
    stack: Stack, running: tuple[Stack, str], tmp_path: Path
) -> None:
    """Case 35: everything would answer 200, and every prompt would be computed twice."""
    before = legs.samples(stack.worker("decode"))["vllm:prompt_tokens_total"]
    with static_router(tmp_path, [running[1]], [stack.worker("decode")], path="/health") as url:
        time.sleep(2)  # ten probes
        ready = httpx.get(f"{url}/ready", timeout=10)
        assert (ready.status_code, ready.json()["missing"]) == (503, ["prefill", "decode"])
        body = {"model": MODEL, "prompt": [300, 301], "max_tokens": 2}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 503
        assert "pairs" in answer.json()["error"]["message"]
    time.sleep(0.2)
    assert legs.samples(stack.worker("decode"))["vllm:prompt_tokens_total"] == before


def test_static_workers_serve_without_a_deployment(stack: Stack, tmp_path: Path) -> None:
    """And the same handoffs cross."""
    prefill_url, decode_url = stack.worker("prefill"), stack.worker("decode")
    reads = legs.samples(decode_url)["tandem_kv_reads_total"]
    with static_router(tmp_path, [prefill_url], [decode_url]) as url, openai_client(url) as client:
        client.completions.create(model=MODEL, prompt=list(range(300, 440)), max_tokens=2)
    assert legs.counted_within(decode_url, "tandem_kv_reads_total", reads + 1, 2)


@pytest.mark.parametrize("key", ["kv_transfer.extra_peers", "kv_transfer.required_transports"])
def test_a_wrong_transfer_setting_is_refused_by_name(stack: Stack, tmp_path: Path, key: str) -> None:
    name = key.removeprefix("kv_transfer.")
    config = worker_config("decode", stack.checkpoint, kv_transfer={"port": free_port(), name: ["nonsense"]})
    assert key in refusal_of(config, tmp_path)

"""A checkpoint or setting that can't be served is named before weights are loaded; vLLM's own models are left alone."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from msa_model.nano.config import model_config
from msa_model.published import with_defaults
from tests.unit.msa_model.checkpoints import entries_of, write_checkpoint, write_config, write_file
from tests.unit.vllm_engine.factories import checkpoint, worker_config
from vllm_engine.model_check import WrongModel, check_checkpoint, check_plan
from wire.worker_config import WorkerConfig


@pytest.fixture
def nano(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path, write_config(tmp_path))
    return tmp_path


def worker(folder: Path, *args: str, **parallelism: Any) -> WorkerConfig:
    return worker_config(model=str(folder), extra_vllm_args=args, parallelism=parallelism)


def test_a_whole_checkpoint_on_ranks_that_share_it_evenly_is_served(nano: Path) -> None:
    check_checkpoint(worker(nano))
    check_checkpoint(worker(nano, tp_size=4))
    check_checkpoint(worker(nano, tp_size=8, enable_ep=True))


def test_a_model_of_vllms_own_is_left_alone(tmp_path: Path) -> None:
    check_checkpoint(worker(checkpoint(tmp_path), tp_size=3))


def test_what_is_missing_is_named_and_where_to_ask_for_more(nano: Path) -> None:
    entries = entries_of(model_config("float32", 512))
    kept = {name: entry for name, entry in entries.items() if ".layers.2.self_attn." not in name}
    write_file(nano / "model.safetensors", kept)
    with pytest.raises(WrongModel, match=r"10 missing: model\.layers\.2\.self_attn\..*msa_model\.preflight"):
        check_checkpoint(worker(nano))


def test_weights_that_are_not_read_need_not_be_there(nano: Path) -> None:
    (nano / "model.safetensors").unlink()
    with pytest.raises(WrongModel, match=r"no \.safetensors file"):
        check_checkpoint(worker(nano))
    check_checkpoint(worker(nano, "--load-format", "dummy"))


@pytest.mark.parametrize(
    ("args", "key"),
    [
        (["--block-size", "64"], "block_size=64"),
        (["--kv_cache_dtype=fp8"], "kv_cache_dtype='fp8'"),
        (["--kv-cache-dtype", "nvfp4", "--kv-cache-dtype", "bfloat16"], "kv_cache_dtype='bfloat16'"),
    ],
)
def test_an_argument_for_a_cache_that_there_is_not_is_refused(nano: Path, args: list[str], key: str) -> None:
    with pytest.raises(WrongModel, match=key):
        check_checkpoint(worker(nano, *args))
    check_checkpoint(worker(nano, "--block-size", "128", "--kv-cache-dtype", "nvfp4"))


@pytest.mark.parametrize(
    ("key", "value"), [("rms_norm_eps", 0), ("num_local_experts", 10**12), ("quantization_config", {"quant_method": 1})]
)
def test_a_value_that_no_model_has_is_refused_by_its_key(nano: Path, key: str, value: Any) -> None:
    write_config(nano, **{key: value})
    with pytest.raises(WrongModel, match=key):
        check_checkpoint(worker(nano))
    write_config(nano)
    with pytest.raises(WrongModel, match=key):
        check_checkpoint(worker(nano, "--hf-overrides", json.dumps({key: value})))


def test_a_checkpoint_with_another_cache_is_refused_unless_this_models_is_asked_for(nano: Path) -> None:
    """vLLM would go by what the checkpoint says."""
    mixed = model_config("float32", 512)["quantization_config"]
    write_config(nano, quantization_config=mixed | {"kv_cache_quant_algo": "FP8"})
    for args in ([], ["--kv-cache-dtype", "auto"]):
        with pytest.raises(WrongModel, match=r"kv_cache_quant_algo='FP8' .* `--kv-cache-dtype nvfp4`"):
            check_checkpoint(worker(nano, *args))
    check_checkpoint(worker(nano, "--kv-cache-dtype", "nvfp4"))
    write_config(nano, quantization_config=mixed | {"kv_cache_quant_algo": "NVFP4"})
    check_checkpoint(worker(nano))


def test_more_tokens_than_the_model_has_positions_for_are_refused(nano: Path) -> None:
    write_config(nano, max_position_embeddings=8191)
    with pytest.raises(WrongModel, match=r"max_model_len=8192 .* 8191 at most"):
        check_checkpoint(worker(nano))
    with pytest.raises(WrongModel, match="max_model_len=8193"):
        check_checkpoint(worker(nano, "--max-model-len=8193"))
    for shorter in ("8191", "8k", "auto"):
        check_checkpoint(worker(nano, "--max-model-len", shorter))


def test_overridden_keys_are_those_that_are_checked(nano: Path) -> None:
    with pytest.raises(WrongModel, match="head_dim=64"):
        check_checkpoint(worker(nano, "--hf-overrides", '{"head_dim": 64}'))
    for not_a_key in ("{", "[]"):
        check_checkpoint(worker(nano, "--hf-overrides", not_a_key))


@pytest.mark.parametrize(
    ("parallelism", "key"), [({"tp_size": 3}, "num_attention_heads"), ({"tp_size": 16}, "experts")]
)
def test_ranks_that_do_not_share_the_model_evenly_are_refused(nano: Path, parallelism: Any, key: str) -> None:
    with pytest.raises(WrongModel, match=key):
        check_checkpoint(worker(nano, **parallelism))


def plan(*, model_type: str = "minimax_m31_flash", **changes: Any) -> Any:
    """vLLM's finished configuration, as far as it is looked at."""
    values = {
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "data_parallel_size": 1,
        "tensor_parallel_size": 1,
        "enable_expert_parallel": False,
        "enable_eplb": False,
        "cache_dtype": "auto",
        "block_size": 128,
        "indexer_kv_dtype": "auto",
    } | changes
    space = SimpleNamespace(**values)
    model = with_defaults(model_config("float32", 512) | {"model_type": model_type})
    return SimpleNamespace(
        parallel_config=space,
        cache_config=space,
        attention_config=space,
        kv_transfer_config=object(),
        model_config=SimpleNamespace(hf_text_config=model),
    )


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"block_size": 64}, "block_size=64"),
        ({"cache_dtype": "fp8"}, "kv_cache_dtype='fp8'"),
        ({"indexer_kv_dtype": "fp8"}, "indexer_kv_dtype='fp8'"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2"),
        ({"data_parallel_size": 2}, "data_parallel_size=2"),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size=3"),
        ({"tensor_parallel_size": 16}, "ranks of tensor parallelism=16"),
        ({"enable_eplb": True}, "enable_eplb"),
    ],
)
def test_a_setting_of_vllm_that_the_model_can_not_be_served_with_is_named(changes: Any, key: str) -> None:
    check_plan(plan())
    with pytest.raises(WrongModel, match=key):
        check_plan(plan(**changes))
    check_plan(plan(model_type="llama", **changes))


def test_whole_experts_allow_more_ranks() -> None:
    check_plan(plan(tensor_parallel_size=16, enable_expert_parallel=True))

"""Whether this worker's checkpoint and settings make a model that can be served, told before weights are loaded.

Of models that are vLLM's own nothing is said here.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msa_model.checkpoint_files import UNREADABLE, read_text
from msa_model.config import (
    KV_CACHE_DTYPES,
    check_block_size,
    check_cache_dtype,
    check_engine_config,
    check_ranks,
)
from msa_model.preflight import check_folder
from msa_model.published import MODEL_TYPE, with_defaults
from msa_model.quant_scheme import QuantScheme
from msa_model.refusals import require
from vllm_engine.args import last_value
from wire.worker_config import WorkerConfig

# vLLM's load formats that don't read the checkpoint's safetensors.
NO_WEIGHTS = ("dummy",)


class WrongModel(Exception):
    """The checkpoint isn't what its config.json says, or this worker's settings don't fit its model."""


def check_checkpoint(config: WorkerConfig) -> None:
    """Look at config.json, at the headers of the weights' files and at this worker's settings; imports no engine.

    Raises:
        WrongModel: names what is missing, unexpected, of another shape or number format, or can't be cut over ranks; or
            the setting that the model can't be served with.
    """
    folder = Path(config.model)
    try:
        values = json.loads(read_text(folder / "config.json"))
    except UNREADABLE as error:
        raise WrongModel(f"{folder / 'config.json'} can't be read: {error}") from error
    if not isinstance(values, dict) or values.get("model_type") != MODEL_TYPE:
        return
    overrides = _overrides(config)
    has_weights = last_value("--load-format", config.extra_vllm_args) not in NO_WEIGHTS
    report = check_folder(folder, is_config_only=not has_weights, overrides=overrides)
    if not report.is_good:
        raise WrongModel(
            f"{folder} can't be loaded: {report.reason()} (`python -m msa_model.preflight {folder}` tells more)"
        )
    with _as_wrong_model():
        ranks, model = config.parallelism, with_defaults(values | overrides)
        check_ranks(model, ranks.tp_size, ranks.dp_size, has_whole_experts=ranks.enable_ep)
        # Told at once, where check_plan would tell it after the engine's imports.
        cache_dtype = last_value("--kv-cache-dtype", config.extra_vllm_args) or KV_CACHE_DTYPES[0]
        check_cache_dtype(cache_dtype)
        if cache_dtype == "auto":
            _check_own_cache(model)
        length = last_value("--max-model-len", config.extra_vllm_args) or str(config.max_model_len)
        if length.isdecimal():  # vLLM knows more spellings
            most = model.max_position_embeddings
            wanted = f"{most} at most, the model's max_position_embeddings"
            require(int(length) <= most, "max_model_len", int(length), wanted)
        block_size = last_value("--block-size", config.extra_vllm_args)
        if block_size is not None and block_size.isdecimal():
            check_block_size(int(block_size))


def _check_own_cache(model: Any) -> None:
    """ValueError if the checkpoint has a format for its cache that vLLM would go by and that there is not."""
    scheme = QuantScheme.of(model)
    key, stored = scheme.cache if scheme else ("", "")
    wanted = "NVFP4; or `--kv-cache-dtype nvfp4` in extra_vllm_args, which counts more"
    require(stored != "FP8", key, stored, wanted)


def check_plan(planned: Any) -> None:
    """Look at vLLM's finished configuration, which ``extra_vllm_args`` had a part in.

    Raises:
        WrongModel: names the setting that the model can't be served with.
    """
    model, parallel = planned.model_config.hf_text_config, planned.parallel_config
    if getattr(model, "model_type", None) != MODEL_TYPE:
        return
    with _as_wrong_model():
        check_engine_config(planned)
        check_block_size(planned.cache_config.block_size)
        check_ranks(
            model,
            parallel.tensor_parallel_size,
            parallel.data_parallel_size,
            has_whole_experts=parallel.enable_expert_parallel,
        )


@contextmanager
def _as_wrong_model() -> Iterator[None]:
    try:
        yield
    except ValueError as e:
        raise WrongModel(str(e)) from e


def _overrides(config: WorkerConfig) -> dict[str, Any]:
    """What ``--hf-overrides`` puts in the place of keys of config.json; vLLM itself says what is wrong with it."""
    try:
        values = json.loads(last_value("--hf-overrides", config.extra_vllm_args) or "{}")
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}

"""From WorkerConfig to vLLM's command line and environment. Pure: importing this file does not import vLLM."""

import json
from collections.abc import Mapping, Sequence

from wire.prefill_queue import PREFILL_QUEUE_KEY
from wire.token_split import TOKEN_SPLIT_KEY
from wire.worker import Fingerprint, WorkerRole
from wire.worker_config import WorkerConfig

CONNECTOR = "RowConnector"
CONNECTOR_MODULE = "kv_transfer.connector"
TTFT_SCHEDULER = "vllm_engine.ttft_scheduler.make_scheduler"

KV_ROLE = {WorkerRole.PREFILL: "kv_producer", WorkerRole.DECODE: "kv_consumer"}


def kv_transfer_json(config: WorkerConfig, engine_id: str, fingerprint: Fingerprint) -> str:
    """vLLM's ``--kv-transfer-config`` for this worker.

    Args:
        engine_id: new at each start, so that handoffs of an earlier life never fit.
        fingerprint: what a peer must have in common with this worker.
    """
    extra = {**config.kv_transfer.model_dump(mode="json"), "fingerprint": fingerprint}
    return json.dumps(
        {
            "kv_connector": CONNECTOR,
            "kv_connector_module_path": CONNECTOR_MODULE,
            "kv_role": KV_ROLE[config.role],
            "engine_id": engine_id,
            "kv_buffer_device": config.device,
            "kv_load_failure_policy": config.kv_transfer.load_failure_policy,
            "kv_connector_extra_config": extra,
        }
    )


def vllm_args(
    config: WorkerConfig, engine_id: str, fingerprint: Fingerprint, role_args: Sequence[str] = ()
) -> list[str]:
    """The exact vLLM arguments of this worker, ``config.extra_vllm_args`` last."""
    args = [
        "--model",
        config.model,
        "--served-model-name",
        config.served_model_name,
        "--host",
        config.host,
        "--port",
        str(config.port),
        "--dtype",
        config.dtype,
        "--block-size",
        str(config.block_size),
        "--max-model-len",
        str(config.max_model_len),
        "--max-num-seqs",
        str(config.max_num_seqs),
        "--max-num-batched-tokens",
        str(config.max_num_batched_tokens),
        "--tensor-parallel-size",
        str(config.parallelism.tp_size),
        "--distributed-executor-backend",
        "uni" if config.parallelism.tp_size == 1 else "mp",
        "--kv-transfer-config",
        kv_transfer_json(config, engine_id, fingerprint),
        "--enable-prefix-caching",
        "--enable-request-id-headers",
        # Prefix hits in `usage`, which clients of hosted APIs are billed by.
        "--enable-prompt-tokens-details",
        "--disable-uvicorn-access-log",
        *role_args,
    ]
    if config.kv_cache_bytes is not None:
        args += ["--kv-cache-memory-bytes", str(config.kv_cache_bytes)]
    if config.enforce_eager or config.token_split.is_on:  # no CUDA graph holds a split step
        args.append("--enforce-eager")
    args += _prefill_args(config) if config.role is WorkerRole.PREFILL else []
    if config.parallelism.enable_ep:
        args.append("--enable-expert-parallel")
    if config.reasoning_parser is not None:
        args += ["--reasoning-parser", config.reasoning_parser]
    if config.tool_call_parser is not None:
        args += ["--enable-auto-tool-choice", "--tool-call-parser", config.tool_call_parser]
    return [*args, *config.extra_vllm_args]


def _prefill_args(config: WorkerConfig) -> list[str]:
    """How a prefill worker splits its tokens and orders its queue; what the model and the scheduler read themselves."""
    args, additional = [], {}
    if config.token_split.is_on:
        additional[TOKEN_SPLIT_KEY] = config.token_split.model_dump(mode="json")
    if config.prefill_queue.policy == "ttft":
        args = ["--scheduler-cls", TTFT_SCHEDULER]
        additional[PREFILL_QUEUE_KEY] = config.prefill_queue.model_dump(mode="json")
    return [*args, "--additional-config", json.dumps(additional)] if additional else args


def last_value(flag: str, args: Sequence[str]) -> str | None:
    """The last value of ``flag`` in a command line, None where it isn't there; vLLM reads ``_`` in flags as ``-``."""
    value = None
    for number, arg in enumerate(args):
        name, equals, given = arg.partition("=")
        if name.replace("_", "-") != flag:
            continue
        if equals:
            value = given
        elif number + 1 < len(args):
            value = args[number + 1]
    return value


def vllm_env(config: WorkerConfig) -> Mapping[str, str]:
    """Environment that must be set before vLLM is imported."""
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    if config.device == "cpu":
        env |= {
            # Else vLLM puts the one rank into a process of its own, "to set its OMP environment", which is set here.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if config.parallelism.tp_size == 1 else "1",
            # vLLM's default binding puts each engine on core 0, where several engines spin against one another.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(config.num_threads),
        }
        if config.enforce_eager:
            # vLLM compiles small helpers (ranks of logprobs) at their first use all the same: 5 s with gcc.
            env["TORCH_COMPILE_DISABLE"] = "1"
    return env

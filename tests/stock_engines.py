"""Stock vLLM engines with vLLM's own NixlConnector, on a small model of a stock architecture."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.stack import REPOSITORY, free_port, single_engine_env, stop, wait_until_ok

MODEL = "stock-nano"
LEASE_S = 6
# What the nano checkpoint has beside its weights and their description: the tokenizer and the chat template.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
# vLLM's NIXL support ties the whole engine to one core on CPU, the same for all engines of a machine.
_SERVE = """
import os, runpy
os.sched_setaffinity = lambda *_: None
runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
"""
_WRITE_MODEL = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=int(sys.argv[2]), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, initializer_range=0.3,
    bos_token_id=None, eos_token_id=int(sys.argv[3]), tie_word_embeddings=False,
)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
"""


def build_stock_checkpoint(nano: Path, directory: Path) -> Path:
    """Two Llama layers of random weights from a seed, with the nano checkpoint's tokenizer."""
    out = directory / "stock"
    nano_config = json.loads((nano / "config.json").read_text())
    command = [sys.executable, "-c", _WRITE_MODEL, str(out)]
    command += [str(nano_config["vocab_size"]), str(nano_config["eos_token_id"])]
    subprocess.run(command, check=True, timeout=120)
    for name in TOKENIZER_FILES:
        if (nano / name).exists():
            shutil.copy(nano / name, out / name)
    return out


@contextmanager
def running_stock_engines(checkpoint: Path, logs: Path, num_engines: int) -> Iterator[list[str]]:
    """URLs of ready engines, each of which can prefill for and decode from every other."""
    with ExitStack() as stack:
        engines = [stack.enter_context(_engine(checkpoint, logs / f"stock-{i}.log")) for i in range(num_engines)]
        for number, (url, process) in enumerate(engines):
            wait_until_ok(f"{url}/health", process, logs / f"stock-{number}.log")
        yield [url for url, _ in engines]


@contextmanager
def _engine(checkpoint: Path, log: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    port = free_port()
    connector = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
    }
    flags = "--dtype float32 --enforce-eager --block-size 128 --max-model-len 2048 --max-num-seqs 8"
    flags += " --kv-cache-memory-bytes 67108864 --max-num-batched-tokens 1024"
    command = [sys.executable, "-c", _SERVE, "--model", str(checkpoint)]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), *flags.split()]
    command += ["--kv-transfer-config", json.dumps(connector)]
    env = os.environ | single_engine_env() | _nixl_env()
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=env, stdout=out, stderr=out)
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            stop(process)


def _nixl_env() -> dict[str, str]:
    return {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        # The plugin of this repository would only cost start-up time: this is about engines that know nothing of it.
        "VLLM_PLUGINS": "",
    }

"""Named values that the unit tests of the engine adapter share."""

import json
from pathlib import Path
from typing import Any

from vllm_engine.identity import WorkerIdentity
from wire.handoff import HandoffKeys, KVHandoff, unsigned
from wire.versions import WIRE_VERSION
from wire.worker import KVPeer
from wire.worker_config import WorkerConfig

KEY = "key of the unit tests"
KEYS = HandoffKeys(KEY)
TOKEN = "cluster token of the unit tests"
FINGERPRINT = {"dtype": "float32", "block_size": "128"}
PEER = KVPeer(engine_id="prefill-0-life1", host="10.0.0.7", port=5600)
CONFIG: dict[str, Any] = {
    "worker_id": "decode-0",
    "role": "decode",
    "model": "nano",
    "served_model_name": "nano",
    "port": 8200,
    "kv_cache_bytes": 1 << 27,
    "enforce_eager": True,
    "kv_transfer": {"port": 8250, "lease_s": 7, "load_failure_policy": "fail"},
}
HANDOFF_ID = "ab" * 16
ASK: dict[str, Any] = {"do_remote_decode": True, "handoff_id": HANDOFF_ID, "num_readers": 1}


def worker_config(**changes: Any) -> WorkerConfig:
    return WorkerConfig.model_validate(CONFIG | changes)


def identity(**changes: Any) -> WorkerIdentity:
    values: dict[str, Any] = {
        "generation": "life1",
        "engine_id": "decode-0-life1",
        "fingerprint": FINGERPRINT,
        "keys": KEYS,
        "token": TOKEN,
    }
    return WorkerIdentity(**(values | changes))


def handoff(**changes: Any) -> KVHandoff:
    """Signed, ``changes`` included."""
    values: dict[str, Any] = {
        "wire_version": WIRE_VERSION,
        "handoff_id": HANDOFF_ID,
        "num_readers": 1,
        "remote_engine_id": PEER.engine_id,
        "remote_request_id": "cmpl-1",
        "remote_host": PEER.host,
        "remote_port": PEER.port,
        "remote_block_ids": [7, 3, 9],
        "remote_num_tokens": 300,
        "prompt_digest": "d" * 64,
        "tp_size": 1,
        "lease_s": 30.0,
        "lease_slot": 5,
        "lease_serial": 17,
    }
    return KEYS.sign(unsigned(**(values | changes)))


def params(**changes: Any) -> dict[str, Any]:
    """As prefill's answer carries them, with the prefix hits that its vLLM adds."""
    return handoff(**changes).model_dump(exclude_none=True) | {"remote_prefill_cached_tokens": 128}


def checkpoint(folder: Path) -> Path:
    """The smallest folder that a fingerprint can be taken of."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["Nano"]}), encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"abcd")
    return folder

"""Named values that the wire's unit tests share."""

from typing import Any

HANDOFF: dict[str, Any] = {
    "wire_version": 2,
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "handoff_id": "0" * 32,
    "num_readers": 1,
    "remote_engine_id": "prefill-0-abc",
    "remote_request_id": "cmpl-1",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "remote_block_ids": [3, 1, 2],
    "remote_num_tokens": 300,
    "prompt_digest": "d" * 64,
    "tp_size": 1,
    "lease_s": 30.0,
    "lease_slot": 5,
    "lease_serial": 17,
    "signature": "0" * 64,
}
# Another valid value for each field that a handoff's signature covers and that can have two.
CHANGES: dict[str, Any] = {
    "wire_version": 1,
    "handoff_id": "1" * 32,
    "num_readers": 2,
    "remote_engine_id": "prefill-0-abd",
    "remote_request_id": "cmpl-2",
    "remote_host": "127.0.0.2",
    "remote_port": 5601,
    "remote_block_ids": [3, 2, 1],
    "remote_num_tokens": 301,
    "prompt_digest": "e" * 64,
    "tp_size": 2,
    "lease_s": 60.0,
    "lease_slot": 6,
    "lease_serial": 18,
}
CONFIG: dict[str, Any] = {
    "worker_id": "prefill-0",
    "role": "prefill",
    "model": "nano",
    "served_model_name": "nano",
    "port": 8100,
    "kv_transfer": {"port": 8150},
}
REGISTRATION: dict[str, Any] = {
    "worker_id": "decode-0",
    "generation": "1",
    "role": "decode",
    "url": "http://h:1",
    "model": "m",
    "max_model_len": 1,
    "block_size": 128,
    "row_bytes": 1,
    "engine_id": "decode-0-1",
    "kv_host": "127.0.0.1",
    "kv_port": 5600,
    "fingerprint": {"dtype": "bfloat16"},
}

"""What crosses a process is strict: unknown, missing, mistyped or out-of-range values are refused by name."""

from typing import Any

import pytest
from pydantic import ValidationError

from wire.errors import BadRequest, LeaseExpired, NoWorker, ServingError, TransferError
from wire.handoff import HandoffRequest, KVHandoff
from wire.worker import WorkerRegistration
from wire.worker_config import WorkerConfig

HANDOFF: dict[str, Any] = {
    "wire_version": 1,
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
    "tp_size": 1,
    "lease_expires_unix_s": 1.7e9,
}
CONFIG: dict[str, Any] = {
    "worker_id": "prefill-0",
    "role": "prefill",
    "model": "nano",
    "served_model_name": "nano",
    "port": 8100,
    "kv_transfer": {"port": 8150},
}


def test_a_handoff_survives_json() -> None:
    handoff = KVHandoff.model_validate(HANDOFF)
    assert KVHandoff.model_validate_json(handoff.model_dump_json()) == handoff
    assert handoff.model_dump(exclude_none=True) == HANDOFF


@pytest.mark.parametrize("field", [name for name in HANDOFF if not name.startswith("do_remote")])
def test_a_handoff_without_a_field_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        KVHandoff.model_validate({k: v for k, v in HANDOFF.items() if k != field})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("handoff_id", "0" * 31),
        ("handoff_id", "../../../../../../../../etc/passwd"),
        ("num_readers", 0),
        ("remote_engine_id", ""),
        ("remote_port", 0),
        ("remote_port", 65536),
        ("remote_port", "5600"),
        ("remote_block_ids", []),
        ("remote_block_ids", [-1]),
        ("remote_block_ids", ["3"]),
        ("remote_block_ids", [[3]]),
        ("remote_num_tokens", 0),
        ("tp_size", True),
        ("do_remote_prefill", False),
        ("surprise", 1),
    ],
)
def test_a_handoff_with_a_wrong_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field):
        KVHandoff.model_validate(HANDOFF | {field: value})


def test_the_ask_for_a_handoff_defaults_to_one_reader() -> None:
    assert HandoffRequest(handoff_id="a" * 32).num_readers == 1


def test_errors_carry_their_status_and_the_openai_shape() -> None:
    error = BadRequest("max_tokens must be at least 1", param="max_tokens")
    assert error.openai_body() == {
        "error": {
            "message": "max_tokens must be at least 1",
            "type": "invalid_request_error",
            "param": "max_tokens",
            "code": 400,
        }
    }
    assert NoWorker("").status == 503
    assert issubclass(LeaseExpired, TransferError)
    assert issubclass(TransferError, ServingError)


def test_a_worker_config_gives_its_own_address() -> None:
    assert WorkerConfig.model_validate(CONFIG).url == "http://127.0.0.1:8100"
    assert WorkerConfig.model_validate(CONFIG | {"advertise_url": "https://p0:1/"}).url == "https://p0:1"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"prot": 8100}, "prot"),
        ({"port": 0}, "port"),
        ({"role": "both"}, "role"),
        ({"block_size": 64}, "block_size"),
        ({"kv_transfer": {"port": 8150, "host": "0.0.0.0"}}, "kv_transfer.host"),
        ({"kv_transfer": {"port": 8150, "load_failure_policy": "hope"}}, "kv_transfer.load_failure_policy"),
        ({"parallelism": {"tp_size": 0}}, "parallelism.tp_size"),
    ],
)
def test_a_wrong_worker_config_is_refused_by_key(change: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        WorkerConfig.model_validate(CONFIG | change)
    assert [".".join(map(str, error["loc"])) for error in refusal.value.errors()] == [key]


def test_a_wildcard_listen_address_is_never_advertised() -> None:
    config = WorkerConfig.model_validate(CONFIG | {"host": "0.0.0.0"})
    with pytest.raises(ValueError, match="can't be advertised"):
        _ = config.url


def test_a_worker_id_fits_a_path_and_a_label() -> None:
    with pytest.raises(ValidationError, match="worker_id"):
        WorkerRegistration.model_validate(
            {
                "worker_id": "a/b",
                "generation": "1",
                "role": "decode",
                "url": "http://h:1",
                "model": "m",
                "max_model_len": 1,
                "block_size": 128,
                "row_bytes": 1,
            }
        )

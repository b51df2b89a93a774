"""An engine that ends up without our connector is refused, since it would serve everything and hand off nothing."""

import json
from typing import Any

import pytest
from vllm.config import KVTransferConfig

from tests.unit.vllm_engine.factories import FINGERPRINT, worker_config
from vllm_engine.args import CONNECTOR, kv_transfer_json
from vllm_engine.connector_check import WrongEngine, check_connector

ENGINE_ID = "decode-0-life1"
CONFIG = worker_config(extra_vllm_args=["--api-key", "secret", "--kv-transfer-config", "{}"])


def transfer(**changes: Any) -> KVTransferConfig:
    """As vLLM has it: this worker's own, with what later arguments make of it."""
    return KVTransferConfig(**(json.loads(kv_transfer_json(CONFIG, ENGINE_ID, FINGERPRINT)) | changes))


def test_the_worker_s_own_settings_pass() -> None:
    check_connector(CONFIG, ENGINE_ID, transfer())
    check_connector(CONFIG, ENGINE_ID, transfer(kv_load_failure_policy="recompute"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv_connector", "NixlConnector"),
        ("kv_connector_module_path", None),
        ("kv_role", "kv_both"),
        ("engine_id", "another"),
    ],
)
def test_a_setting_that_was_replaced_is_named_with_what_replaced_it(name: str, value: Any) -> None:
    with pytest.raises(WrongEngine, match=f"{name} is {value}, not ") as refused:
        check_connector(CONFIG, ENGINE_ID, transfer(**{name: value}))
    assert "extra_vllm_args" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("made", [None, KVTransferConfig()])
def test_an_engine_without_any_connector_is_refused(made: KVTransferConfig | None) -> None:
    with pytest.raises(WrongEngine, match=f"kv_connector is None, not {CONNECTOR}"):
        check_connector(worker_config(), ENGINE_ID, made)


def test_an_offloading_connector_in_place_of_ours_is_refused() -> None:
    """vLLM's own flag for offloading puts its connector over the one that was configured."""
    made = transfer()
    made.kv_connector, made.kv_role = "OffloadingConnector", "kv_both"
    with pytest.raises(WrongEngine, match="OffloadingConnector"):
        check_connector(CONFIG, ENGINE_ID, made)

"""The connector's settings are read strictly from vLLM's configuration."""

from typing import Any

import pytest
from pydantic import ValidationError

from kv_transfer.settings import ConnectorSettings
from tests.unit.kv_transfer.engines import vllm_config
from tests.unit.kv_transfer.factories import FINGERPRINT


def settings(**extra: Any) -> ConnectorSettings:
    return ConnectorSettings.from_vllm(vllm_config("prefill-0-life1", **extra))


def test_what_both_roles_need_is_there() -> None:
    read = settings(tp_size=2, num_kv_heads=8, lease_s=7)
    assert (read.engine_id, read.tp_size, read.num_kv_heads) == ("prefill-0-life1", 2, 8)
    assert read.config.lease_s == 7
    assert read.config.fingerprint == FINGERPRINT


@pytest.mark.parametrize(("policy", "recomputes"), [("recompute", True), ("fail", False)])
def test_vllm_s_policy_decides_what_a_failed_transfer_leads_to(policy: str, recomputes: bool) -> None:
    assert settings(policy=policy).recomputes is recomputes


def test_extra_peers_are_addresses() -> None:
    assert settings(extra_peers=["10.0.0.1:5600", "[::1]:5601"]).config.extra_peer_addresses() == [
        ("10.0.0.1", 5600),
        ("[::1]", 5601),
    ]


@pytest.mark.parametrize(
    "change", [{"surprise": 1}, {"port": 0}, {"host": "0.0.0.0"}, {"extra_peers": ["nowhere"]}, {"fingerprint": None}]
)
def test_a_wrong_setting_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(change))):
        settings(**change)

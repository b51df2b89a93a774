"""A worker's configuration is refused by key where it can't work."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.wire.factories import CONFIG
from wire.worker_config import KVTransferConfig, WorkerConfig


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
        ({"kv_transfer": {"port": 8150, "read_timeout_s": 0}}, "kv_transfer.read_timeout_s"),
        ({"kv_transfer": {"port": 8150, "required_transports": ["pigeon"]}}, "kv_transfer.required_transports.0"),
        ({"kv_transfer": {"port": 8150, "on_wrong_transport": "hope"}}, "kv_transfer.on_wrong_transport"),
        ({"parallelism": {"tp_size": 0}}, "parallelism.tp_size"),
        ({"parallelism": {"dp_size": 2}}, "parallelism"),
        ({"parallelism": {"dcp_size": 2}}, "parallelism"),
    ],
)
def test_a_wrong_worker_config_is_refused_by_key(change: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        WorkerConfig.model_validate(CONFIG | change)
    assert [".".join(map(str, error["loc"])) for error in refusal.value.errors()] == [key]


WILDCARDS = [
    *("0.0.0.0", "0", "0.0", "0x0", "00.0.0.0", "0.0.0.0 ", "*"),
    *("::", "[::]", "::0", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0"),
]


@pytest.mark.parametrize("host", WILDCARDS)
def test_an_address_that_each_peer_would_take_for_itself_is_refused(host: str) -> None:
    """Case 36, however it is spelled."""
    with pytest.raises(ValidationError, match="can't be advertised"):
        KVTransferConfig(port=1, host=host)
    with pytest.raises(ValidationError, match="advertise_url"):
        WorkerConfig.model_validate(CONFIG | {"host": host})
    assert WorkerConfig.model_validate(CONFIG | {"host": host, "advertise_url": "http://a:1/"}).url == "http://a:1"


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "0", "[::ffff:0.0.0.0]", ""])
def test_no_wildcard_is_advertised(host: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        WorkerConfig.model_validate(CONFIG | {"advertise_url": f"http://{host}:8000"})
    assert [error["loc"] for error in refusal.value.errors()] == [("advertise_url",)]


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "::1", "prefill-0.kv", "0.kv", "localhost"])
def test_an_address_is_advertised(host: str) -> None:
    assert KVTransferConfig(port=1, host=host).host == host


@pytest.mark.parametrize("peer", ["10.0.0.1:5600", "prefill-0.kv:1", "[::1]:65535"])
def test_an_extra_peer_is_host_and_port(peer: str) -> None:
    assert KVTransferConfig(port=1, extra_peers=(peer,)).extra_peers == (peer,)


@pytest.mark.parametrize("peer", ["", "host", "host:", ":5600", "host:0", "host:65536", "host:-1", "host:x", "5600"])
def test_an_extra_peer_that_is_no_address_is_refused_by_value(peer: str) -> None:
    with pytest.raises(ValidationError, match="is not host:port"):
        KVTransferConfig(port=1, extra_peers=("10.0.0.1:5600", peer))


def test_by_default_only_registered_peers_are_read_over_any_transport() -> None:
    config = KVTransferConfig(port=1)
    assert (config.extra_peers, config.required_transports, config.on_wrong_transport) == ((), (), "refuse")


SPLIT = {"parallelism": {"tp_size": 2}, "token_split": {"enable_sp": True}}


def test_a_prefill_worker_may_split_its_tokens() -> None:
    assert WorkerConfig.model_validate(CONFIG | SPLIT | {"role": "prefill"}).token_split.enable_sp


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"role": "decode"}, "token_split is for prefill"),
        ({"role": "prefill", "parallelism": {"tp_size": 1}}, r"token_split\.enable_sp needs tp_size > 1"),
        ({"role": "prefill", "extra_vllm_args": ["--additional-config", "{}"]}, "extra_vllm_args: --additional-config"),
        ({"role": "prefill", "extra_vllm_args": ["--additional_config={}"]}, "extra_vllm_args: --additional-config"),
        ({"role": "decode", "token_split": {}, "prefill_queue": {"policy": "fcfs"}}, "prefill_queue is for prefill"),
    ],
)
def test_what_is_for_prefill_is_refused_where_it_can_not_work(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        WorkerConfig.model_validate(CONFIG | SPLIT | changes)

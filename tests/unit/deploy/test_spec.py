"""The spec refuses what can't work, by key path, before anything is started."""

import pytest
from pydantic import ValidationError

from deploy.spec import DeploymentSpec, EngineSpec, KVTransferSpec
from wire.worker_config import KVTransferConfig

BASE = {"name": "small", "model": "nano", "served_model_name": "m"}


def spec(**sections: object) -> DeploymentSpec:
    return DeploymentSpec.model_validate({**BASE, **sections})


def test_a_spec_with_only_the_model_has_one_worker_of_each_role_and_a_router_on_8000() -> None:
    made = spec()
    assert (made.prefill.replicas, made.decode.replicas, made.router.port) == (1, 1, 8000)


@pytest.mark.parametrize("section", ["prefill", "decode"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "*"])
def test_a_worker_that_peers_dial_refuses_a_wildcard_host(section: str, host: str) -> None:
    with pytest.raises(ValidationError, match="can't be advertised"):
        spec(**{section: {"host": host}})


def test_the_router_may_listen_on_every_address_and_is_dialled_on_loopback() -> None:
    assert spec(router={"host": "0.0.0.0"}).router.dial_host == "127.0.0.1"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"prefill": {"port": 8000}}, r"prefill\.port: port 8000 is taken by router\.port"),
        ({"router": {"metrics_port": 8000}}, r"router\.metrics_port: port 8000 is taken by router\.port"),
        ({"prefill": {"port": 9000}, "decode": {"kv_port": 9000}}, r"decode\.kv_port: port 9000 .* prefill\.port"),
        ({"decode": {"port": 7999, "replicas": 2}}, r"decode\.port: port 8000 is taken by router\.port"),
        ({"decode": {"port": 65535, "replicas": 2}}, r"decode\.port: replica ports run past 65535"),
    ],
)
def test_two_owners_of_one_port_are_named(sections: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(**sections)


@pytest.mark.parametrize("port", [0, 65536, -1, True, "some"])
def test_a_port_is_a_port_number_or_auto(port: object) -> None:
    for key in ("port", "metrics_port"):
        with pytest.raises(ValidationError):
            spec(router={key: port})


def test_a_group_overrides_only_the_engine_keys_it_writes() -> None:
    base = EngineSpec.model_validate({"max_num_seqs": 4, "kv_cache_bytes": 1 << 27})
    merged = base.overridden_by(EngineSpec.model_validate({"kv_cache_bytes": None}))
    assert (merged.max_num_seqs, merged.kv_cache_bytes) == (4, None)


def test_a_group_overrides_only_the_transfer_keys_it_writes() -> None:
    base = KVTransferSpec.model_validate({"lease_s": 7, "extra_peers": ["10.0.0.1:5600"]})
    merged = base.overridden_by(KVTransferSpec.model_validate({"extra_peers": [], "lease_s": 30}))
    assert (merged.lease_s, merged.extra_peers) == (30, ())
    assert base.overridden_by(KVTransferSpec()) == base


def test_the_transfer_keys_are_those_of_a_worker_but_for_its_own_address() -> None:
    fields, of_worker = KVTransferSpec.model_fields, KVTransferConfig.model_fields
    assert set(of_worker) - set(fields) == {"host", "port"}
    assert {name: field.default for name, field in fields.items()} == {name: of_worker[name].default for name in fields}


@pytest.mark.parametrize("section", ["kv_transfer", "prefill.kv_transfer", "decode.kv_transfer"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("read_timeout_s", 0),
        ("extra_peers", ["nowhere"]),
        ("required_transports", ["pigeon"]),
        ("on_wrong_transport", "hope"),
        ("port", 5600),
    ],
)
def test_a_wrong_transfer_key_is_refused_by_its_path(section: str, key: str, value: object) -> None:
    group, _, last = section.rpartition(".")
    with pytest.raises(ValidationError) as refusal:
        spec(**({group: {last: {key: value}}} if group else {last: {key: value}}))
    paths = [".".join(map(str, fault["loc"])) for fault in refusal.value.errors()]
    assert [path.startswith(f"{section}.{key}") for path in paths] == [True]


def test_kv_cache_bytes_reads_units() -> None:
    assert EngineSpec.model_validate({"kv_cache_bytes": "128MiB"}).kv_cache_bytes == 128 << 20


@pytest.mark.parametrize("key", ["host", "port"])
def test_router_settings_cannot_repeat_what_the_spec_sets(key: str) -> None:
    with pytest.raises(ValidationError, match=rf"belongs to router\.{key}"):
        spec(router={"settings": {key: "x"}})


def test_the_longest_backoff_is_not_below_the_first() -> None:
    with pytest.raises(ValidationError, match="max_backoff_s is shorter"):
        spec(restart={"initial_backoff_s": 5, "max_backoff_s": 1})


def test_an_auto_port_is_not_among_the_fixed_ones() -> None:
    made = spec(prefill={"port": 9000, "replicas": 2}, router={"port": "auto"})
    assert made.fixed_ports() == {9000, 9001}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"prefill": {"token_split": {"enable_dbo": True}}}, r"prefill\n.*token_split\.enable_dbo needs tp_size > 1"),
        (
            {"decode": {"parallelism": {"tp_size": 2}, "token_split": {"enable_sp": True}}},
            r"decode\.token_split: only prefill",
        ),
    ],
)
def test_tokens_are_split_on_prefill_over_several_ranks(sections: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(**sections)


def test_a_prefill_group_may_split_its_tokens() -> None:
    group = {"parallelism": {"tp_size": 2}, "token_split": {"enable_sp": True, "enable_dbo": True}}
    assert spec(prefill=group).prefill.token_split.is_on

"""Settings come from command line, environment, file and default, in that order; a wrong one is named."""

from pathlib import Path
from typing import Any

import pytest

from router.__main__ import main
from router.config import ConfigError, RouterConfig, load_config


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "router.yaml"
    file.write_text(text)
    return file


def test_defaults_suffice() -> None:
    assert load_config(environ={}) == RouterConfig()


def test_command_line_beats_environment_beats_file(tmp_path: Path) -> None:
    file = write(tmp_path, "port: 1\nhost: 127.0.0.2\npolicy: round_robin\n")
    config = load_config(
        file=file,
        environ={"TANDEM_ROUTER_PORT": "2", "TANDEM_ROUTER_HOST": "127.0.0.3"},
        overrides={"port": "3", "host": None},
    )
    assert (config.port, config.host, config.policy) == (3, "127.0.0.3", "round_robin")


@pytest.mark.parametrize("name", RouterConfig.model_fields)
def test_every_field_can_be_set_by_environment(name: str) -> None:
    value = {"host": "::1", "policy": "round_robin", "prefill": "http://a:1", "decode": "http://a:2"}.get(name, "7")
    value = {"log_level": "debug", "no_prefill": "decode_only", "retry_ratio": "0.5"}.get(name, value)
    value = "http://a:4318" if name == "otlp_traces_endpoint" else value
    value = "queue_depth" if name in ("prefill_policy", "decode_policy") else value
    beside = {"tls_cert_file": "tls_key_file", "tls_key_file": "tls_cert_file", "max_in_flight_per_key": "api_keys"}
    others = {f"TANDEM_ROUTER_{beside[name].upper()}": "x"} if name in beside else {}
    others |= {"TANDEM_ROUTER_METRICS_PORT": "9000"} if name == "processes" else {}
    config = load_config(environ={f"TANDEM_ROUTER_{name.upper()}": value} | others)
    assert getattr(config, name) != getattr(RouterConfig(), name)


@pytest.mark.parametrize("name", RouterConfig.model_fields)
def test_every_setting_is_in_the_documentation_with_its_default(name: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    [row] = [line for line in text.splitlines() if line.startswith("| `") and f"`{name}`" in line.split("|")[1]]
    default, shown = RouterConfig.model_fields[name].default, row.split("|")[2].strip(" `")
    special = {"max_body_bytes": "64 MiB"}.get(name, "none" if default in (None, ()) else str(default))
    assert shown == special.removesuffix(".0")


def test_lists_are_comma_separated_in_environment_and_real_lists_in_files(tmp_path: Path) -> None:
    config = load_config(environ={"TANDEM_ROUTER_PREFILL": "http://a:1/, http://b:2"})
    assert config.prefill == ("http://a:1", "http://b:2")
    assert load_config(file=write(tmp_path, "prefill: [http://a:1, http://b:2]"), environ={}).prefill == config.prefill


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://a:4318", "http://a:4318/v1/traces"),
        ("https://a/", "https://a/v1/traces"),
        ("http://a:4318/v1/traces", "http://a:4318/v1/traces"),
        ("http://a/tenant/otlp", "http://a/tenant/otlp"),
    ],
)
def test_a_collector_without_a_path_gets_otlps_own(given: str, used: str) -> None:
    assert load_config(environ={}, overrides={"otlp_traces_endpoint": given}).otlp_traces_endpoint == used


def test_json_is_a_config_file_too(tmp_path: Path) -> None:
    assert load_config(file=write(tmp_path, '{"port": 9}'), environ={}).port == 9


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("prot: 1", "prot"),
        ("port: many", "port"),
        ("port: 0", "port"),
        ("port: 70000", "port"),
        ("policy: random", "policy"),
        ("prefill: [ftp://x]", "prefill"),
        ("prefill: ['http://x/?a=b']", "prefill"),
        ("max_body_bytes: -1", "max_body_bytes"),
        ("prefill_timeout_s: 0", "prefill_timeout_s"),
        ("connect_timeout_s: .inf", "connect_timeout_s"),
        ("cluster_token: ''", "cluster_token"),
        ("prefill: ['http://x:0']", "prefill"),
        ("prefill: ['http://x:99999']", "prefill"),
        ("api_keys: ['two words']", "api_keys"),
        ("max_in_flight_per_key: 0", "max_in_flight_per_key"),
        ("prefill_policy: random", "prefill_policy"),
        ("decode_policy: ''", "decode_policy"),
        ("no_prefill: maybe", "no_prefill"),
        ("prefill_tokens_per_worker: -1", "prefill_tokens_per_worker"),
        ("decode_tokens_per_worker: 1.5", "decode_tokens_per_worker"),
        ("max_queued_tokens: -1", "max_queued_tokens"),
        ("queue_timeout_s: -1", "queue_timeout_s"),
        ("ping_interval_s: never", "ping_interval_s"),
        ("request_timeout_s: .nan", "request_timeout_s"),
        ("retry_ratio: 1.1", "retry_ratio"),
        ("breaker_failures: -1", "breaker_failures"),
        ("breaker_open_s: 0", "breaker_open_s"),
        ("breaker_max_open_s: 1e9", "breaker_max_open_s"),
        ("processes: 0", "processes"),
        ("processes: 257", "processes"),
        ("otlp_traces_endpoint: collector:4317", "otlp_traces_endpoint"),
        ("otlp_traces_endpoint: http://user:pass@collector", "otlp_traces_endpoint"),
    ],
)
def test_a_wrong_key_or_value_in_a_file_is_named(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load_config(file=write(tmp_path, text), environ={})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"port": 8000, "metrics_port": 8000}, "metrics_port: is the same as port"),
        ({"prefill": "http://a:1,http://a:1/"}, "prefill: names a worker twice"),
        ({"decode": "http://a:80/x,http://A/x"}, "decode: names a worker twice"),
        ({"prefill": "http://a:1", "decode": "http://b:1,http://a:1"}, "decode: names a worker that prefill names too"),
        ({"tls_cert_file": "cert.pem"}, "tls_key_file: is needed with tls_cert_file"),
        ({"tls_key_file": "key.pem"}, "tls_key_file: makes no sense without tls_cert_file"),
        ({"max_in_flight_per_key": 3}, "max_in_flight_per_key: makes no sense without api_keys or api_keys_file"),
        ({"api_keys": "sk-1,a:sk-1"}, "api_keys: key 2 is there already"),
        ({"breaker_open_s": 5, "breaker_max_open_s": 4}, "breaker_max_open_s: is less than breaker_open_s"),
        ({"processes": 2}, "processes: more than 1 need a metrics_port"),
    ],
)
def test_a_senseless_combination_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(environ={}, overrides=settings)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "settings",
    [
        {"port": 8000, "metrics_port": 8001},
        {"processes": 2, "metrics_port": 8001},
        {"prefill": "http://a:1,https://a:1,http://a:1/x", "decode": "http://a:2"},
        {"tls_cert_file": "cert.pem", "tls_key_file": "key.pem"},
        {"max_in_flight_per_key": 3, "api_keys_file": "keys"},
    ],
)
def test_what_only_looks_alike_is_taken(settings: dict[str, Any]) -> None:
    config = load_config(environ={}, overrides=settings)
    assert config != RouterConfig()


def test_keys_of_a_file_that_came_from_elsewhere_are_named_as_they_were_written_there(tmp_path: Path) -> None:
    file = write(tmp_path, "nonsense: 1\nport: 1\nprefill: [ftp://x]\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file=file, environ={"TANDEM_ROUTER_PORT": "x"}, key_prefix="router.settings.")
    named = {fault.split(": ")[0] for fault in str(caught.value).split("; ")}
    assert named == {"router.settings.nonsense", "router.settings.prefill.0", "port"}


@pytest.mark.parametrize("text", ["- 1", "{", "1: 2"])
def test_a_file_that_holds_no_object_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        load_config(file=write(tmp_path, text), environ={})


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        load_config(file=tmp_path / "absent", environ={})


@pytest.mark.parametrize(("name", "value"), [("PROT", "1"), ("PORT", "x"), ("PORT", ""), ("POLICY", "random")])
def test_a_wrong_environment_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"(?i){name}"):
        load_config(environ={f"TANDEM_ROUTER_{name}": value})


def test_the_cluster_token_comes_from_the_shared_variable() -> None:
    token = load_config(environ={"TANDEM_CLUSTER_TOKEN": "hush"}).cluster_token
    assert token is not None
    assert token.get_secret_value() == "hush"


def test_secrets_are_neither_printed_nor_quoted_in_errors() -> None:
    config = load_config(environ={"TANDEM_CLUSTER_TOKEN": "hush", "TANDEM_ROUTER_API_KEYS": "hush1,hush2"})
    assert "hush" not in repr(config)
    with pytest.raises(ConfigError) as caught:
        load_config(environ={}, overrides={"cluster_token": ["hush"], "api_keys": {"hush": 1}})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.0.0.1", False), ("h", False)],
)
def test_loopback_is_recognised(host: str, is_loopback: bool) -> None:
    assert RouterConfig(host=host).is_loopback is is_loopback


def test_the_command_prefixes_the_files_keys_as_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--key-prefix", "router.settings.", "--config", str(write(tmp_path, "nonsense: 1"))])
    assert capsys.readouterr().err.startswith("router: router.settings.nonsense: ")


@pytest.mark.parametrize("name", ["tls_cert_file", "tls_key_file", "worker_ca_file", "api_keys_file"])
def test_a_file_that_is_not_there_stops_the_start_with_its_setting(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    there.touch()
    pair = {"tls_cert_file": there, "tls_key_file": there} if name.startswith("tls") else {}
    files: dict[str, Path] = pair | {name: tmp_path / "absent"}
    with pytest.raises(SystemExit) as caught:
        main([word for key, file in files.items() for word in (f"--{key.replace('_', '-')}", str(file))])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(f"router: {name}: {tmp_path}/absent can't be read: No such file")


def test_the_command_stops_with_the_bad_keys_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--prefill", "nonsense"])
    assert caught.value.code == 2
    assert "prefill" in capsys.readouterr().err

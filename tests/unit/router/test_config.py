"""Settings come from command line, environment, file and default, in that order; a wrong one is named."""

from pathlib import Path

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
    value = {"log_level": "debug"}.get(name, value)
    config = load_config(environ={f"TANDEM_ROUTER_{name.upper()}": value})
    assert getattr(config, name) != getattr(RouterConfig(), name)


def test_lists_are_comma_separated_in_environment_and_real_lists_in_files(tmp_path: Path) -> None:
    config = load_config(environ={"TANDEM_ROUTER_PREFILL": "http://a:1/, http://b:2"})
    assert config.prefill == ("http://a:1", "http://b:2")
    assert load_config(file=write(tmp_path, "prefill: [http://a:1, http://b:2]"), environ={}).prefill == config.prefill


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
    ],
)
def test_a_wrong_key_or_value_in_a_file_is_named(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load_config(file=write(tmp_path, text), environ={})


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


def test_the_command_stops_with_the_bad_keys_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--prefill", "nonsense"])
    assert caught.value.code == 2
    assert "prefill" in capsys.readouterr().err

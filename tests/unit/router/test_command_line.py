"""Each setting has a flag but the secrets; the help tells its default and its variable."""

import re

import pytest

from router.command_line import SECRETS, parse_arguments
from router.config import RouterConfig

FLAGGED = [name for name in RouterConfig.model_fields if name not in SECRETS]


@pytest.fixture
def help_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", FLAGGED)
def test_the_help_tells_flag_default_and_variable(help_text: str, name: str) -> None:
    flag, variable = name.replace("_", "-"), f"TANDEM_ROUTER_{name.upper()}"
    assert re.search(rf"--{flag} \S+\s+\w[^()]*\(default: [^;]+; {variable}\)", help_text)


@pytest.mark.parametrize("name", RouterConfig.model_fields)
def test_every_setting_is_described(name: str) -> None:
    assert RouterConfig.model_fields[name].description


def test_secrets_have_no_flag_and_the_help_says_where_they_go(help_text: str) -> None:
    for name in SECRETS:
        assert f"--{name.replace('_', '-')} " not in help_text
        assert f"TANDEM_ROUTER_{name.upper()}" in help_text
        with pytest.raises(SystemExit):
            parse_arguments([f"--{name.replace('_', '-')}", "x"])


@pytest.mark.parametrize("flag", ["--health-interval", "--health-interval-s"])
def test_seconds_go_without_their_unit_or_with_it(flag: str) -> None:
    assert parse_arguments([flag, "3"])["health_interval_s"] == "3"


@pytest.mark.parametrize("flag", ["--policy", "--prefill-policy"])
def test_the_help_names_the_words_to_choose_from(help_text: str, flag: str) -> None:
    assert f"{flag} round_robin|least_loaded|power_of_two|queue_depth|prefix_affinity" in help_text


def test_other_units_stay() -> None:
    assert parse_arguments(["--max-body-bytes", "3"])["max_body_bytes"] == "3"
    with pytest.raises(SystemExit):
        parse_arguments(["--max-body", "3"])


def test_what_is_not_given_is_left_to_others() -> None:
    given = parse_arguments(["--port", "3"])
    assert [name for name in FLAGGED if given[name] is not None] == ["port"]
    assert given["config"] is None

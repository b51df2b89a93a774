"""The command lines of the routers, and which packages they need."""

from pathlib import Path

import pytest

from bench.router.routers import KINDS, packages

ENGINES = {"prefill": [1, 2], "decode": [3]}


def command(name: str) -> list[str]:
    return KINDS[name].command(Path("bin"), 80, 81, ENGINES)


def test_our_router_runs_with_its_defaults() -> None:
    assert command("tandem")[1:] == [
        *("-m", "router", "--port", "80"),
        *("--prefill", "http://127.0.0.1:1,http://127.0.0.1:2"),
        *("--decode", "http://127.0.0.1:3"),
    ]


@pytest.mark.parametrize("name", ["vllm-router", "smg"])
def test_a_peers_only_setting_is_its_policy(name: str) -> None:
    assert command(name) == [*command(f"{name}-default"), "--policy", "round_robin"]


def test_packages_are_those_of_the_peers_once_each() -> None:
    assert packages(["tandem", "smg", "smg-default"]) == ["smg"]
    with pytest.raises(ValueError, match="no such router: nginx"):
        packages(["nginx"])

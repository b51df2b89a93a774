"""Secrets reach the processes that need them by environment, no others, and nothing else holds them."""

from pathlib import Path

import pytest

from tests.unit.deploy.process_tree import END_LIMIT_S, Launch, command_line, tree_below, wait_all_up

TOKEN, KEY = "TANDEM_CLUSTER_TOKEN", "TANDEM_HANDOFF_KEY"
UNSET = {TOKEN: "", KEY: ""}


def environments(launcher_pid: int) -> dict[str, dict[str, str]]:
    """The environment of each process with a configuration file, by the file's name; its supervisor's as NAME/child."""
    found = {}
    for pid in tree_below(launcher_pid):
        *_, config = command_line(pid).removesuffix(b"\0").split(b"\0")
        if config.endswith(b".json"):
            name = Path(config.decode()).stem + ("/child" if b"child.py" in command_line(pid) else "")
            items = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
            found[name] = dict(item.partition("=")[::2] for item in items)
    return found


def test_minted_secrets_reach_workers_by_environment_and_appear_nowhere(launch: Launch, tmp_path: Path) -> None:
    process = launch(env=UNSET)
    wait_all_up(process)
    seen = environments(process.pid)
    token, key = seen["prefill-0"][TOKEN], seen["prefill-0"][KEY]
    assert len(token) >= 32
    assert len(key) >= 32
    assert token != key
    assert {name: env[TOKEN] for name, env in seen.items()} == dict.fromkeys(seen, token)
    lines = [command_line(pid) for pid in tree_below(process.pid)]
    process.terminate()
    output, _ = process.communicate(timeout=END_LIMIT_S)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 7
    for secret in (token, key):
        assert not any(secret.encode() in line for line in lines)
        assert secret not in output
        assert not any(secret.encode() in path.read_bytes() for path in files)


@pytest.mark.parametrize("env", [UNSET, {KEY: "given"}])
def test_the_handoff_key_is_one_for_all_workers_and_unknown_to_the_router(launch: Launch, env: dict[str, str]) -> None:
    process = launch(env=env)
    wait_all_up(process)
    seen = environments(process.pid)
    holders = {name for name, environ in seen.items() if KEY in environ}
    assert {name.removesuffix("/child") for name in seen} == {"router", "prefill-0", "decode-0"}
    assert holders == {name for name in seen if not name.startswith("router")}
    keys = {seen[name][KEY] for name in holders}
    assert len(keys) == 1
    assert keys == {"given"} or not env[KEY]


def test_a_given_token_is_passed_on(launch: Launch) -> None:
    process = launch(env={TOKEN: "given"})
    wait_all_up(process)
    assert {environ[TOKEN] for environ in environments(process.pid).values()} == {"given"}


def test_each_launch_makes_its_own_key(launch: Launch) -> None:
    first = launch(env=UNSET)
    wait_all_up(first)
    key = environments(first.pid)["decode-0"][KEY]
    first.terminate()
    first.communicate(timeout=END_LIMIT_S)
    second = launch(env=UNSET)
    wait_all_up(second)
    assert environments(second.pid)["decode-0"][KEY] != key

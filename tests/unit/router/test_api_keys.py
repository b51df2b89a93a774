"""API keys: how they are written, who is let in, and what each name has used."""

import re
from pathlib import Path

import pytest

from router.api_keys import ApiKey, name_keys, parse_key, read_key_file
from router.auth import ClientAuth, configured_keys, read_keys_again
from router.config import ConfigError, RouterConfig
from router.key_usage import KeyUsage
from wire.errors import Overloaded, Unauthorized


def auth_of(*texts: str, usage: KeyUsage | None = None) -> ClientAuth:
    return ClientAuth(name_keys(texts), usage or KeyUsage())


def name_of(auth: ClientAuth, key: str) -> str | None:
    return auth.check({"authorization": f"Bearer {key}"})


def is_let_in(auth: ClientAuth, key: str) -> bool:
    try:
        name_of(auth, key)
    except Unauthorized:
        return False
    return True


# --- how they are written ---


@pytest.mark.parametrize(
    ("text", "name", "key"),
    [("sk-1", "", b"sk-1"), ("alice:sk-1", "alice", b"sk-1"), ("a.b_c-9:x==", "a.b_c-9", b"x=="), ("#x", "", b"#x")],
)
def test_a_key_may_have_a_name_before_a_colon(text: str, name: str, key: bytes) -> None:
    assert parse_key(text) == (name, key)


@pytest.mark.parametrize(
    "text",
    ["", "alice:", ":sk-1", "a b:sk-1", "two words", "sk,1", "a:b:sk-1", "clé", "a" * 65 + ":x", "-a:x", "key-1:x"],
)
def test_what_is_no_key_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=r"key") as caught:
        parse_key(text)
    assert not text or not re.search(rf"\b{re.escape(text)}\b", str(caught.value))


def test_keys_without_a_name_go_by_their_place() -> None:
    named = name_keys(["sk-1", "alice:sk-2", "sk-3"])
    assert named == (ApiKey("key-1", b"sk-1"), ApiKey("alice", b"sk-2"), ApiKey("key-3", b"sk-3"))


def test_a_key_twice_is_refused_by_its_place_also_under_another_name() -> None:
    with pytest.raises(ValueError, match=r"^key 3 is there already$"):
        name_keys(["sk-1", "alice:sk-2", "bob:sk-2"])


def test_a_file_has_a_key_a_line_with_comments_and_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\ufeff# Zoé's team\n\n  alice:sk-1  \r\nsk-2\n   # sk-3\n", encoding="utf-8")
    assert read_key_file(file) == ["alice:sk-1", "sk-2"]


@pytest.mark.parametrize("content", [b"", b"# nobody\n", b"\xff\xfe"])
def test_a_file_without_a_key_is_refused_since_it_would_let_everyone_in(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=str(file)):
        read_key_file(file)


def test_keys_of_both_places_count_together(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("sk-2\nbob:sk-3\n")
    config = RouterConfig.model_validate({"api_keys": ["alice:sk-1"], "api_keys_file": file})
    assert [key.name for key in configured_keys(config)] == ["alice", "key-2", "bob"]
    file.write_text("sk-1\n")
    with pytest.raises(ConfigError, match=r"^api_keys_file: key 2 is there already"):
        configured_keys(config)


def test_no_key_is_shown_where_one_is_printed() -> None:
    assert "sk-1" not in repr(name_keys(["alice:sk-1"]))


# --- who is let in ---


def test_a_right_key_gives_its_name() -> None:
    auth = auth_of("alice:sk-1", "sk-2", "alice:sk-3")
    assert [name_of(auth, key) for key in ("sk-1", "sk-2", "sk-3")] == ["alice", "key-2", "alice"]


def test_a_key_may_come_in_either_header_and_a_wrong_one_beside_it_does_not_matter() -> None:
    auth = auth_of("alice:sk-1", "bob:sk-2")
    assert auth.check({"x-api-key": "sk-2"}) == "bob"
    assert auth.check({"authorization": "Bearer none", "x-api-key": "sk-2"}) == "bob"
    assert auth.check({"authorization": "Bearer sk-1", "x-api-key": "none"}) == "alice"


@pytest.mark.parametrize("given", ["", "sk", "sk-11", "alice:sk-1", "alice", "SK-1", "\xff", "x" * 100_000])
def test_anything_else_lets_nobody_in(given: str) -> None:
    assert not is_let_in(auth_of("alice:sk-1"), given)


def test_without_keys_everyone_comes_in_and_has_no_name() -> None:
    assert auth_of().check({}) is None


def test_a_changed_file_is_taken_and_a_bad_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    file.write_text("alice:sk-1\n")
    config = RouterConfig(api_keys_file=file)
    auth = ClientAuth(configured_keys(config), KeyUsage())
    file.write_text("alice:sk-2\n")
    read_keys_again(auth, config)
    assert [is_let_in(auth, key) for key in ("sk-1", "sk-2")] == [False, True]
    for bad in ("", "alice:sk-3\nalice:sk 4\n"):
        file.write_text(bad)
        read_keys_again(auth, config)
        assert [is_let_in(auth, key) for key in ("sk-2", "sk-3")] == [True, False]
    file.unlink()
    read_keys_again(auth, config)
    assert is_let_in(auth, "sk-2")
    assert caplog.text.count("the keys stay as they were") == 3
    assert "sk" not in caplog.text


# --- what each has used ---


def test_each_name_starts_at_0_and_counts_by_status() -> None:
    usage = KeyUsage()
    auth_of("alice:sk-1", "sk-2", usage=usage)
    assert set(usage.requests()) == {("alice", 200, 0), ("key-2", 200, 0)}
    for status in (200, 400, 200):
        usage.begin("alice")
        usage.end("alice", status)
    assert set(usage.requests()) == {("alice", 200, 2), ("alice", 400, 1), ("key-2", 200, 0)}
    assert dict(usage.in_flight()) == {"alice": 0, "key-2": 0}


def test_one_name_over_its_limit_is_refused_and_others_are_not() -> None:
    usage = KeyUsage(max_in_flight=2)
    auth_of("alice:sk-1", "bob:sk-2", usage=usage)
    usage.begin("alice")
    usage.begin("alice")
    with pytest.raises(Overloaded) as caught:
        usage.begin("alice")
    usage.end("alice", 429)
    assert caught.value.retry_after_s == 1
    assert "alice" not in caught.value.message
    usage.begin("bob")
    usage.end("alice", 200)
    usage.begin("alice")
    assert dict(usage.in_flight()) == {"alice": 2, "bob": 1}


def test_counts_outlive_a_key_that_goes_and_comes_back() -> None:
    usage = KeyUsage()
    auth = auth_of("alice:sk-1", usage=usage)
    usage.begin("alice")
    auth.replace(name_keys(["bob:sk-2"]))
    usage.end("alice", 200)
    auth.replace(name_keys(["alice:sk-3"]))
    assert ("alice", 200, 1) in usage.requests()

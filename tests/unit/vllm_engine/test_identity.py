"""Who a worker is, is known before vLLM is imported; the router is asked before a model is loaded."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.vllm_engine.factories import FINGERPRINT, KEY, KEYS, TOKEN, checkpoint, identity, worker_config
from tests.unit.vllm_engine.routers import refusal, serving
from vllm_engine.identity import RegistrationRefused, WorkerIdentity, WrongIdentity, check_with_router
from wire.handoff import HANDOFF_KEY_ENV
from wire.versions import WIRE_VERSION
from wire.worker import WorkerCheck
from wire.worker_config import CLUSTER_TOKEN_ENV, WorkerConfig

ENVIRON = {HANDOFF_KEY_ENV: KEY, CLUSTER_TOKEN_ENV: TOKEN}


@pytest.fixture
def config(tmp_path: Path) -> WorkerConfig:
    return worker_config(model=str(checkpoint(tmp_path / "nano")))


def test_each_life_of_a_worker_has_its_own_names(config: WorkerConfig) -> None:
    lives = [WorkerIdentity.create(config, ENVIRON) for _ in range(3)]
    assert len({life.engine_id for life in lives}) == len({life.generation for life in lives}) == 3
    for life in lives:
        assert life.engine_id == f"decode-0-{life.generation}"


def test_what_must_be_equal_on_both_sides_is_in_the_fingerprint(config: WorkerConfig) -> None:
    one = WorkerIdentity.create(config, ENVIRON).fingerprint
    assert {"block_size", "dtype", "max_model_len", "weights", "tokenizer", "chat_template"} <= set(one)
    changes: list[dict[str, Any]] = [{"max_model_len": 4096}, {"dtype": "bfloat16"}]
    for change in changes:
        other = WorkerIdentity.create(config.model_copy(update=change), ENVIRON).fingerprint
        assert {name for name in one if one[name] != other[name]} == set(change)
    alike = config.model_copy(update={"max_num_seqs": 3, "num_threads": 2, "worker_id": "decode-1"})
    assert WorkerIdentity.create(alike, ENVIRON).fingerprint == one


def test_secrets_come_from_the_environment_and_show_nowhere(config: WorkerConfig) -> None:
    life = WorkerIdentity.create(config, ENVIRON)
    assert life.token == TOKEN
    assert KEY not in repr(life)
    assert TOKEN not in repr(life)
    assert WorkerIdentity.create(config, {HANDOFF_KEY_ENV: KEY}).token == ""


@pytest.mark.parametrize(
    "change",
    [
        {"host": "0.0.0.0", "advertise_url": "http://10.0.0.7:8200"},
        {"host": "10.0.0.7"},
        {"kv_transfer": {"port": 8250, "host": "10.0.0.7"}},
    ],
)
@pytest.mark.parametrize("environ", [{}, {CLUSTER_TOKEN_ENV: ""}])
def test_a_worker_that_others_can_reach_can_t_be_without_a_token(
    config: WorkerConfig, change: dict[str, Any], environ: dict[str, str]
) -> None:
    reachable = worker_config(model=config.model, **change)
    with pytest.raises(WrongIdentity, match=f"{CLUSTER_TOKEN_ENV} is not set"):
        WorkerIdentity.create(reachable, {HANDOFF_KEY_ENV: KEY} | environ)
    assert WorkerIdentity.create(reachable, ENVIRON).token == TOKEN


@pytest.mark.parametrize("environ", [{}, {HANDOFF_KEY_ENV: ""}, {HANDOFF_KEY_ENV: " , "}])
def test_a_worker_without_a_key_can_t_be(config: WorkerConfig, environ: dict[str, str]) -> None:
    with pytest.raises(WrongIdentity, match=HANDOFF_KEY_ENV):
        WorkerIdentity.create(config, environ)


def test_a_checkpoint_that_is_not_there_can_t_be_served(tmp_path: Path) -> None:
    with pytest.raises(WrongIdentity, match="nowhere"):
        WorkerIdentity.create(worker_config(model=str(tmp_path / "nowhere")), ENVIRON)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"null", b"\xff\xfe", b"\x00" * 100])
def test_a_checkpoint_that_can_t_be_read_can_t_be_served(config: WorkerConfig, content: bytes) -> None:
    (Path(config.model) / "config.json").write_bytes(content)
    with pytest.raises(WrongIdentity):
        WorkerIdentity.create(config, ENVIRON)


def test_settings_that_change_what_kv_is_are_part_of_the_fingerprint(config: WorkerConfig) -> None:
    plain = WorkerIdentity.create(config, ENVIRON).fingerprint
    assert plain["--kv-cache-dtype"] == "none"
    for args in (
        ("--kv-cache-dtype", "fp8"),
        ("--kv-cache-dtype=fp8",),
        ("--kv-cache-dtype", "nvfp4", "--kv-cache-dtype=fp8"),
    ):
        other = WorkerIdentity.create(config.model_copy(update={"extra_vllm_args": args}), ENVIRON).fingerprint
        assert other == plain | {"--kv-cache-dtype": "fp8"}


def test_the_router_is_asked_with_all_that_it_compares() -> None:
    with serving((200, {})) as router:
        check_with_router(worker_config(router_url=router.url), identity())
    [(method, path, headers, body)] = router.seen
    assert (method, path) == ("POST", "/internal/workers/check")
    assert headers["authorization"] == f"Bearer {TOKEN}"
    asked = WorkerCheck.model_validate(body)
    assert (asked.worker_id, asked.role, asked.model) == ("decode-0", "decode", "nano")
    assert (asked.fingerprint, asked.wire_version) == (FINGERPRINT, WIRE_VERSION)
    assert (asked.handoff_key, asked.handoff_keys) == (KEYS.signs, KEYS.verifies)


REASON = "dtype is float16 on prefill-0, float32 on decode-0"
OTHER_VERSION = {"error": {"message": "this router speaks wire version 3", "code": "wire_version_mismatch"}}


def test_a_refusal_ends_the_start_with_the_router_s_reason() -> None:
    with serving(refusal(REASON)) as router, pytest.raises(RegistrationRefused, match=REASON):
        check_with_router(worker_config(router_url=router.url), identity())


def test_a_router_of_another_wire_version_ends_the_start() -> None:
    with serving((400, OTHER_VERSION)) as router, pytest.raises(RegistrationRefused, match="speaks wire version 3"):
        check_with_router(worker_config(router_url=router.url), identity())


def test_a_worker_without_a_cluster_token_is_checked_too() -> None:
    with serving(refusal(REASON)) as router, pytest.raises(RegistrationRefused, match=REASON):
        check_with_router(worker_config(router_url=router.url), identity(token=""))


def test_any_other_bad_request_lets_the_start_go_on() -> None:
    with serving((400, {"error": {"message": "no", "code": 400}})) as router:
        check_with_router(worker_config(router_url=router.url), identity())


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(("token", "fault"), [(TOKEN, "is another than"), ("", "is not set")])
def test_a_wrong_or_missing_cluster_token_ends_the_start_by_its_name(status: int, token: str, fault: str) -> None:
    refusal = pytest.raises(RegistrationRefused, match=f"{status}: {CLUSTER_TOKEN_ENV} {fault}")
    with serving((status, b"who knows")) as router, refusal as refused:
        check_with_router(worker_config(router_url=router.url), identity(token=token))
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize("status", [200, 400, 404, 500, 503])
def test_any_other_answer_lets_the_start_go_on(status: int) -> None:
    with serving((status, b"who knows")) as router:
        check_with_router(worker_config(router_url=router.url), identity())
        assert len(router.seen) == 1


def test_the_port_of_the_router_s_clients_ends_the_start() -> None:
    answer = (404, {"error": {"message": "Not Found", "type": "not_found_error", "param": None, "code": 404}})
    with serving(answer) as router, pytest.raises(RegistrationRefused, match="router_url"):
        check_with_router(worker_config(router_url=router.url), identity())


@pytest.mark.parametrize("content", [b"", b"no JSON", b"[]", b"{}", b'{"error": "text"}'])
def test_a_conflict_in_other_words_than_ours_is_a_refusal_too(content: bytes) -> None:
    # A proxy between worker and router may answer for it.
    with serving((409, content)) as router, pytest.raises(RegistrationRefused):
        check_with_router(worker_config(router_url=router.url), identity())


def test_a_router_that_is_away_lets_the_start_go_on() -> None:
    with serving((200, {})) as router:
        url = router.url
    check_with_router(worker_config(router_url=url), identity())


def test_a_worker_without_a_router_asks_nobody() -> None:
    check_with_router(worker_config(), identity())

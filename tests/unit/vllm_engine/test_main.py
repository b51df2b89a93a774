"""A worker that can't serve as it is configured says why in one line and ends with 78; vLLM is not imported for it."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.vllm_engine.factories import CONFIG, KEY, TOKEN, checkpoint
from tests.unit.vllm_engine.routers import refusal, serving
from vllm_engine.connector_check import WrongEngine
from vllm_engine.identity import RegistrationRefused
from vllm_engine.main import main
from vllm_engine.model_check import WrongModel
from wire.handoff import HANDOFF_KEY_ENV
from wire.worker import WorkerRole
from wire.worker_config import CLUSTER_TOKEN_ENV, EXIT_CONFIG, EXIT_REASON_PREFIX

ROOT = Path(__file__).parents[3]


class Start:
    """Runs the command line in this process, as far as it goes without vLLM."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self.monkeypatch, self.capsys = folder / "worker.json", monkeypatch, capsys
        self.config: dict[str, Any] = CONFIG | {"model": str(checkpoint(folder / "nano"))}
        monkeypatch.setenv(HANDOFF_KEY_ENV, KEY)
        monkeypatch.setenv(CLUSTER_TOKEN_ENV, TOKEN)
        # Should a start go on that must not, it ends here and not in an engine.
        monkeypatch.setitem(sys.modules, "vllm_engine.server", None)

    def reason(self, content: bytes | None = None, role: WorkerRole = WorkerRole.DECODE, **changes: Any) -> str:
        """Why it did not start."""
        self.path.write_bytes(json.dumps(self.config | changes).encode() if content is None else content)
        self.monkeypatch.setattr(sys, "argv", ["worker", "--config", str(self.path)])
        with pytest.raises(SystemExit) as end:
            main(role, ())
        assert end.value.code == EXIT_CONFIG == 78
        said = self.capsys.readouterr().err
        assert said.startswith(EXIT_REASON_PREFIX)
        assert said.endswith("\n")
        assert len(said.splitlines()) == 1, "the launcher shows one line"
        return said.removeprefix(EXIT_REASON_PREFIX).strip()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Start:
    return Start(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"surprise": 1}, ["surprise"]),
        ({"port": 0, "dtype": "int4"}, ["port", "dtype"]),
        ({"kv_transfer": {"port": 8250, "host": "0.0.0.0"}}, ["kv_transfer.host", "can't be advertised"]),
        ({"kv_transfer": {"port": 8250, "extra_peers": ["nowhere"]}}, ["extra_peers", "host:port"]),
    ],
)
def test_a_wrong_configuration_is_named_key_by_key(start: Start, changes: dict[str, Any], words: list[str]) -> None:
    reason = start.reason(**changes)
    assert str(start.path) in reason
    assert all(word in reason for word in words)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_a_configuration_that_is_no_object_is_refused(start: Start, content: bytes) -> None:
    assert "wrong worker configuration" in start.reason(content)


def test_a_configuration_of_the_other_role_is_refused(start: Start) -> None:
    assert "this is the prefill worker, the configuration is for decode" in start.reason(role=WorkerRole.PREFILL)


def test_a_configuration_that_is_not_there_is_refused(start: Start) -> None:
    start.path.mkdir()
    start.monkeypatch.setattr(Path, "write_bytes", lambda *_: 0)
    assert "worker.json" in start.reason()


def test_a_missing_key_is_named(start: Start) -> None:
    start.monkeypatch.delenv(HANDOFF_KEY_ENV)
    assert HANDOFF_KEY_ENV in start.reason()


def test_a_missing_token_is_named_where_others_can_reach_the_worker(start: Start) -> None:
    start.monkeypatch.delenv(CLUSTER_TOKEN_ENV)
    assert CLUSTER_TOKEN_ENV in start.reason(host="0.0.0.0", advertise_url="http://10.0.0.7:8200")


def test_a_library_that_can_t_encrypt_the_side_channel_is_named(start: Start) -> None:
    start.monkeypatch.setattr("zmq.has", lambda what: what != "curve")
    assert "CURVE" in start.reason()


def test_a_token_that_the_router_does_not_know_is_named(start: Start) -> None:
    with serving((401, {})) as router:
        reason = start.reason(router_url=router.url)
    assert CLUSTER_TOKEN_ENV in reason
    assert TOKEN not in reason


@pytest.mark.parametrize("which", ["api", "side channel"])
def test_a_taken_port_is_named_before_the_engine_starts(
    start: Start, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    def run(*_: object) -> None:
        raise AssertionError("the engine was started")

    start.monkeypatch.setitem(sys.modules, "vllm_engine.server", SimpleNamespace(run=run))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        changes = {"port": port} if which == "api" else {"kv_transfer": {"port": port}}
        start.path.write_text(json.dumps(start.config | changes), encoding="utf-8")
        start.monkeypatch.setattr(sys, "argv", ["worker", "--config", str(start.path)])
        with pytest.raises(SystemExit) as ended:
            main(WorkerRole.DECODE, ())
    assert ended.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line == f"decode_worker: port {port} on 127.0.0.1 can't be listened on: Address already in use"


@pytest.mark.parametrize("error", [RegistrationRefused, WrongEngine, WrongModel])
def test_what_shows_only_while_the_engine_starts_is_told_the_same_way(start: Start, error: type[Exception]) -> None:
    def run(*_: object) -> None:
        raise error("the connector is another")

    start.monkeypatch.setitem(sys.modules, "vllm_engine.server", SimpleNamespace(run=run))
    assert start.reason() == "the connector is another"


def test_a_checkpoint_that_can_t_be_read_is_named(start: Start) -> None:
    assert "nowhere" in start.reason(model=str(start.path.parent / "nowhere"))


def test_a_checkpoint_of_another_make_than_it_says_is_named_before_the_router_is_asked(start: Start) -> None:
    folder = checkpoint(start.path.parent / "odd")
    (folder / "config.json").write_text(json.dumps({"model_type": "minimax_m31_flash", "head_dim": 64}))
    with serving(refusal("never asked")) as router:
        assert "head_dim=64" in start.reason(model=str(folder), router_url=router.url)


def test_a_refusal_of_the_router_is_told_in_its_words(start: Start) -> None:
    reason = "dtype: float16 on prefill-0, float32 on decode-0"
    with serving(refusal(reason)) as router:
        assert start.reason(router_url=router.url) == reason


def test_a_refusal_in_several_lines_is_told_in_one(start: Start) -> None:
    with serving(refusal("dtype differs\nweights differ")) as router:
        reason = start.reason(router_url=router.url)
    assert "dtype differs" in reason
    assert "weights differ" in reason


def test_the_reason_comes_before_anything_heavy_is_imported(start: Start) -> None:
    start.path.write_text(json.dumps(start.config), encoding="utf-8")
    code = (
        "import sys\n"
        "from vllm_engine.main import main\n"
        "from wire.worker import WorkerRole\n"
        f"sys.argv = ['worker', '--config', {str(start.path)!r}]\n"
        "try:\n"
        "    main(WorkerRole.DECODE, ())\n"
        "finally:\n"
        "    print([name for name in ('vllm', 'torch', 'nixl', 'ray') if name in sys.modules])\n"
    )
    environ = {name: value for name, value in os.environ.items() if name != HANDOFF_KEY_ENV}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, env=environ
    )
    assert (ended.returncode, ended.stdout.strip()) == (EXIT_CONFIG, "[]")
    assert ended.stderr.startswith(EXIT_REASON_PREFIX)

"""Two engines' scheduler sides, joined by real side channels: handoffs cross, leases are renewed, blocks let go."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from pydantic import ValidationError

from kv_transfer import side_channel
from kv_transfer.connector_scheduler import SchedulerSide
from kv_transfer.handshake import decode_greeting
from kv_transfer.step import HelloMetadata, PeerRows
from tests.unit.kv_transfer.engines import ROW_BYTES, Engine, cache_config, free_port, vllm_config
from tests.unit.kv_transfer.factories import (
    FINGERPRINT,
    HANDOFF_ID,
    KEY,
    KEYS,
    Clock,
    handoff,
    request,
    wait_for,
)
from wire.errors import TransferFailed
from wire.handoff import HANDOFF_KEY_ENV, KVHandoff
from wire.worker_config import CLUSTER_TOKEN_ENV

ASK = {"do_remote_decode": True, "handoff_id": HANDOFF_ID, "num_readers": 1}
TOKEN = "cluster token of the unit tests"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setenv(HANDOFF_KEY_ENV, KEY)
    monkeypatch.setenv(CLUSTER_TOKEN_ENV, TOKEN)
    return Clock()


@pytest.fixture
def prefill(clock: Clock) -> Iterator[Engine]:
    engine = Engine("prefill-0-life1", clock, lease_s=0.3)
    yield engine
    engine.side.shutdown()


@pytest.fixture
def decode(clock: Clock) -> Iterator[Engine]:
    engine = Engine("decode-0-life1", clock)
    yield engine
    engine.side.shutdown()


def ask(engine: Engine, verb: bytes, payload: object = None, token: str = TOKEN, timeout_s: float = 5) -> bytes:
    encoded = b"" if payload is None else json.dumps(payload).encode()
    return side_channel.ask("127.0.0.1", engine.port, verb, encoded, token=token, timeout_s=timeout_s)


def name_to(decode: Engine, *peers: Engine) -> None:
    """The router names these engines to ``decode``."""
    named = [{"engine_id": peer.engine_id, "host": "127.0.0.1", "port": peer.port} for peer in peers]
    ask(decode, side_channel.PEERS, named)


def granted(prefill: Engine, request_id: str = "p") -> dict[str, Any]:
    is_held, params = prefill.side.request_finished(request(ASK, request_id=request_id), [7, 3, 9])
    assert is_held
    assert params is not None
    return params


def num_leases(engine: Engine) -> int:
    return int(json.loads(ask(engine, side_channel.STATUS))["num_leases"])


def test_a_handoff_goes_from_prefill_to_decode_and_back_to_nothing(prefill: Engine, decode: Engine) -> None:
    name_to(decode, prefill)
    params = granted(prefill)
    wish = request(params)
    decode.side.on_new_request(wish)
    wait_for(lambda: decode.side.get_num_new_matched_tokens(wish, 0) == (300, True))
    decode.side.update_state_after_alloc(wish, blocks([4, 5, 6]), 300)
    meta = decode.step()
    assert meta.peers == [PeerRows("prefill-0-life1", [b"rank 0", b"rank 1"])]
    [pull] = meta.pulls
    assert (pull.block_ids, pull.remote_block_ids) == ([4, 5, 6], [7, 3, 9])
    decode.ranks_report(received="req")
    assert num_leases(prefill) == 1
    prefill.ranks_report(sent="p")
    assert num_leases(prefill) == 0


def blocks(block_ids: list[int]) -> Any:
    return SimpleNamespace(get_block_ids=lambda: (block_ids,))


def test_a_lease_outlives_its_time_while_its_request_waits_and_ends_when_it_goes(
    prefill: Engine, decode: Engine, clock: Clock
) -> None:
    name_to(decode, prefill)
    params = granted(prefill)
    wish = request(params)
    decode.side.on_new_request(wish)
    for _ in range(3):
        clock.now += 0.25  # of 0.3; the renewals come by the real clock
        before = renewed_at(prefill)
        wait_for(lambda before=before: renewed_at(prefill) > before)  # type: ignore[misc]
        assert prefill.step().drops == []
    decode.side.request_finished(wish, [])
    wait_for(lambda: prefill.step().notes)


def renewed_at(prefill: Engine) -> float:
    [lease] = prefill.side._prefill.leases._by_handoff.values()
    return lease.deadline_s


def test_nobody_is_dialled_who_is_not_registered(prefill: Engine, decode: Engine) -> None:
    params = granted(prefill)
    with pytest.raises(TransferFailed, match="is not registered"):
        decode.side._send("127.0.0.1", prefill.port, side_channel.RELEASE, b"{}")
    wish = request(params)
    decode.side.on_new_request(wish)
    assert decode.side.get_num_new_matched_tokens(wish, 0) == (0, False)
    decode.side.request_finished(wish, [])
    assert decode.step().peers == []
    assert prefill.step().notes == []


def test_a_configured_peer_needs_no_router(prefill: Engine, clock: Clock) -> None:
    decode = Engine("decode-0-life1", clock, extra_peers=[f"127.0.0.1:{prefill.port}"])
    wish = request(granted(prefill))
    decode.side.on_new_request(wish)
    wait_for(lambda: decode.side.get_num_new_matched_tokens(wish, 0) == (300, True))
    decode.side.shutdown()


def test_an_engine_of_another_fingerprint_is_refused_with_both_values(clock: Clock, decode: Engine) -> None:
    other = Engine("prefill-0-life1", clock, fingerprint=FINGERPRINT | {"dtype": "float16"})
    name_to(decode, other)
    wish = request(granted(other))
    decode.side.on_new_request(wish)
    wait_for(lambda: decode.side.get_num_new_matched_tokens(wish, 0) == (0, False))
    decode.side.update_state_after_alloc(wish, blocks([4, 5, 6]), 0)
    assert decode.stats()["refusals:mismatch"] == 1
    other.side.shutdown()


def test_the_greeting_carries_all_ranks_in_order(prefill: Engine) -> None:
    greeting = decode_greeting(ask(prefill, side_channel.HELLO))
    assert greeting.hellos == [b"rank 0", b"rank 1"]
    assert (greeting.engine_id, greeting.fingerprint, greeting.num_kv_heads) == ("prefill-0-life1", FINGERPRINT, 4)


@pytest.mark.parametrize(
    "verb", [side_channel.HELLO, side_channel.RELEASE, side_channel.RENEW, side_channel.PEERS, side_channel.STATUS]
)
def test_a_stranger_can_change_and_learn_nothing(prefill: Engine, verb: bytes) -> None:
    granted(prefill)
    with pytest.raises(TransferFailed, match=CLUSTER_TOKEN_ENV):
        ask(prefill, verb, [], token="guess", timeout_s=0.2)
    assert num_leases(prefill) == 1


@pytest.mark.parametrize(
    ("verb", "payload"),
    [
        (side_channel.RELEASE, {"handoff_id": "short"}),
        (side_channel.RELEASE, []),
        (side_channel.RENEW, {"ids": 1}),
        (side_channel.RENEW, [1]),
        (side_channel.PEERS, [{"engine_id": "e", "host": "h", "port": 0}]),
        (side_channel.PEERS, "everybody"),
    ],
)
def test_a_malformed_message_is_refused_and_the_next_one_heard(prefill: Engine, verb: bytes, payload: object) -> None:
    with pytest.raises(TransferFailed, match="refused"):
        ask(prefill, verb, payload)
    assert num_leases(prefill) == 0


def test_a_list_of_thousands_of_wrong_peers_is_one_line_in_the_log(
    decode: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TransferFailed, match="5000 validation errors"):
        ask(decode, side_channel.PEERS, [{"engine_id": 7}] * 5000)
    assert sum(record.getMessage().count("\n") + 1 for record in caplog.records) == 1


def test_the_status_counts_leases_and_names_the_row(prefill: Engine) -> None:
    granted(prefill)
    assert json.loads(ask(prefill, side_channel.STATUS)) == {"num_leases": 1, "row_bytes": ROW_BYTES}


def test_a_release_by_the_router_drops_the_blocks_and_says_whether_any_were_held(prefill: Engine) -> None:
    granted(prefill)
    assert json.loads(ask(prefill, side_channel.RELEASE, {"handoff_id": HANDOFF_ID})) == {"released": True}
    assert prefill.step().drops == ["p"]
    prefill.ranks_report(sent="p")
    assert json.loads(ask(prefill, side_channel.RELEASE, {"handoff_id": HANDOFF_ID})) == {"released": False}


def test_leases_by_state_are_told_when_they_change(prefill: Engine) -> None:
    granted(prefill)
    assert prefill.stats() == {"leases_granted": 1, "leases:held": 1, "leases:dropping": 0}
    assert prefill.stats() == {}
    ask(prefill, side_channel.RELEASE, {"handoff_id": HANDOFF_ID})
    prefill.step()
    assert prefill.stats() == {"leases_ended:released": 1, "leases:held": 0, "leases:dropping": 1}
    prefill.ranks_report(sent="p")
    assert prefill.stats() == {"leases:held": 0, "leases:dropping": 0}


def test_a_step_says_whether_the_engine_only_polls_and_what_it_preempted(prefill: Engine) -> None:
    params = KVHandoff.model_validate(granted(prefill))
    assert KEYS.verify(params)
    assert not prefill.step(num_tokens=1).is_idle
    assert prefill.step(num_tokens=0).is_idle
    assert prefill.step("p").revoked == [(params.lease_slot, params.lease_serial)]


@pytest.mark.parametrize("params", [None, "x", 7, ["do_remote_decode"], {}])
def test_a_request_without_handoff_parameters_is_vllm_s_own(prefill: Engine, params: object) -> None:
    wish = request(params)
    prefill.side.on_new_request(wish)
    assert prefill.side.get_num_new_matched_tokens(wish, 0) == (0, False)
    prefill.side.update_state_after_alloc(wish, blocks([4, 5, 6]), 0)
    assert prefill.side.request_finished(wish, [1, 2, 3]) == (False, None)


def test_parameters_of_both_legs_at_once_are_neither(prefill: Engine) -> None:
    wish = request(handoff().model_dump(exclude_none=True) | ASK)
    prefill.side.on_new_request(wish)
    assert prefill.side.get_num_new_matched_tokens(wish, 0) == (0, False)
    assert prefill.side.request_finished(wish, [1, 2, 3]) == (False, None)


def test_an_engine_without_a_key_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HANDOFF_KEY_ENV, raising=False)
    with pytest.raises(ValueError, match=HANDOFF_KEY_ENV):
        SchedulerSide(vllm_config("e"), cache_config())


def test_an_unknown_setting_does_not_start(clock: Clock) -> None:
    with pytest.raises(ValidationError, match="surprise"):
        SchedulerSide(vllm_config("e", surprise=1), cache_config())


def test_a_taken_port_fails_the_start(clock: Clock, prefill: Engine) -> None:
    second = SchedulerSide(vllm_config("e", port=prefill.port), cache_config())
    with pytest.raises(zmq.ZMQError):
        second.start_side_channel({0: HelloMetadata(b"")})
    second.shutdown()


def test_after_the_shutdown_the_port_is_free_again(clock: Clock) -> None:
    port = free_port()
    for _ in range(2):
        side = SchedulerSide(vllm_config("e", port=port), cache_config())
        side.start_side_channel({0: HelloMetadata(b"")})
        side.shutdown()
        side.shutdown()

"""A handoff is asked for and checked in the words of the connector that gives it."""

import json
from typing import Any

import pytest

from router.dialects import NIXL, TANDEM, Dialect, nixl_release_body
from wire.errors import UpstreamError

ID = "a" * 32
TANDEMS: dict[str, Any] = {"wire_version": 2, "handoff_id": ID, "num_readers": 2, "remote_block_ids": [3, 1, 2]}
NIXLS: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "e",
    "remote_request_id": "cmpl-1",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "remote_block_ids": [[4, 5], [6]],
    "tp_size": 1,
}


@pytest.mark.parametrize(
    ("dialect", "handoff", "num_blocks"),
    [(TANDEM, TANDEMS, 3), (NIXL, NIXLS, 2), (NIXL, NIXLS | {"remote_block_ids": [7, 8, 9]}, 3)],
)
def test_a_good_handoff_tells_its_blocks(dialect: Dialect, handoff: dict[str, Any], num_blocks: int) -> None:
    assert dialect.check(handoff, ID, 2) == num_blocks


@pytest.mark.parametrize(
    "wrong",
    [
        *({"wire_version": version} for version in (99, [2], None)),
        *({"handoff_id": "b" * 32}, {"num_readers": 1}, {"num_readers": "2"}),
        *({"remote_block_ids": None}, {"remote_block_ids": "12"}),
    ],
)
def test_a_handoff_of_tandem_s_that_answers_another_ask_is_not_used(wrong: dict[str, Any]) -> None:
    with pytest.raises(UpstreamError):
        TANDEM.check(TANDEMS | wrong, ID, 2)


WRONG_IN_NIXL: list[dict[str, Any]] = [
    *({name: None} for name in NIXLS if name not in ("do_remote_decode", "tp_size")),
    *({"remote_block_ids": ids} for ids in ([], "12", ["1"], [["1"]], [[1], "x"], [1, None])),
    {"remote_port": 0},
    {"remote_port": "5600"},
    {"do_remote_prefill": False},
]


@pytest.mark.parametrize("wrong", WRONG_IN_NIXL, ids=str)
def test_what_would_end_a_stock_engine_does_not_reach_it(wrong: dict[str, Any]) -> None:
    with pytest.raises(UpstreamError) as caught:
        NIXL.check(NIXLS | wrong, ID, 1)
    assert next(iter(wrong)) in caught.value.message


def test_a_stock_engine_is_asked_in_its_own_words() -> None:
    ask = json.loads(NIXL.ask(ID, 1))
    assert ask["do_remote_decode"] is True
    assert ask["do_remote_prefill"] is False
    assert ID not in NIXL.ask(ID, 1)


def test_a_stock_handoff_is_given_back_as_it_came() -> None:
    body = json.loads(nixl_release_body('{"remote_port":  5600,"do_remote_prefill":true}'))
    assert body["kv_transfer_params"] == {"remote_port": 5600, "do_remote_prefill": True}
    assert body["max_tokens"] == 1

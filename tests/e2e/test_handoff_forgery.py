"""Two hundred bad handoffs: each refused with a reason, none harms an engine."""

import copy
import random
import time
from typing import Any

from tests import legs
from tests.stack import HANDOFF_KEY, Stack
from wire.handoff import HandoffKeys, KVHandoff, prompt_digest
from wire.refusal import Refusal

NUM_FORGED = 200
ANSWERS_WITHIN_S = 5.0
VOCABULARY = range(300, 500)
NO_SALT = "\n"  # no LoRA adapter, no cache salt
STRANGE: list[Any] = [None, True, -1, 0, 1, 1 << 70, 1.5, "", "x", "0" * 32, "0" * 64, [], [1], {}, {"a": 1}, "\u0000"]


def prompt_of(seed: int, num_tokens: int = 200) -> list[int]:
    return random.Random(seed).choices(VOCABULARY, k=num_tokens)


def forge(valid: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """``valid`` with one thing wrong."""
    forged = copy.deepcopy(valid)
    name = draw.choice(sorted(forged))
    way = draw.choice(["drop", "replace", "add", "shift", "truncate", "nest"])
    if way == "drop":
        del forged[name]
    elif way == "add":
        forged[f"{name}_"] = forged[name]
    elif way == "nest":
        forged[name] = {"value": forged[name]}
    elif way == "shift" and isinstance(forged[name], int):
        forged[name] = forged[name] + draw.choice([1, -1, 1 << 31])
    elif way == "truncate" and isinstance(forged[name], str | list):
        forged[name] = forged[name][:-1]
    else:
        forged[name] = draw.choice([value for value in STRANGE if value != forged[name]])
    # A flag that says the same in another way would not be wrong.
    return forged if forged != valid and repr(forged) != repr(valid) else forge(valid, draw)


def test_forged_handoffs_are_refused_before_the_engine_sees_them(stack: Stack) -> None:
    prefill_url, decode_url = stack.worker("prefill"), stack.worker("decode")
    generations, draw = stack.generations(), random.Random(20)
    valid = legs.prefill(prefill_url, prompt_of(1), lease_s=60)
    del valid["remote_prefill_cached_tokens"]  # vLLM's own and not signed; tested below
    reasons: dict[str, int] = {}
    for _ in range(NUM_FORGED):
        forged, began = forge(valid, draw), time.monotonic()
        answer = legs.decode(decode_url, prompt_of(1), forged)
        assert 400 <= answer.status_code < 500, (forged, answer.text)
        assert time.monotonic() - began < ANSWERS_WITHIN_S
        reason = answer.headers["x-tandem-handoff-refused"]
        assert answer.json()["error"]["param"] == "kv_transfer_params"
        reasons[reason] = reasons.get(reason, 0) + 1
    assert reasons.keys() >= {Refusal.MALFORMED, Refusal.SIGNATURE}, reasons
    counted = legs.samples(decode_url)
    assert all(counted[f"tandem_handoffs_refused_total:{reason}"] >= n for reason, n in reasons.items())
    assert stack.generations() == generations, "an engine died"

    # None of them has touched the true one.
    reads = legs.samples(decode_url)["tandem_kv_reads_total"]
    legs.tokens_of(legs.decode(decode_url, prompt_of(1), valid))
    assert legs.counted_within(decode_url, "tandem_kv_reads_total", reads + 1, 2)
    assert legs.no_lease_within(prefill_url, 2)


def test_more_cached_tokens_than_the_prompt_has_are_refused(stack: Stack) -> None:
    """Case 1: the one field that vLLM adds after us."""
    handoff = legs.prefill(stack.worker("prefill"), prompt_of(2))
    answer = legs.decode(stack.worker("decode"), prompt_of(2), handoff | {"remote_prefill_cached_tokens": 201})
    assert answer.headers["x-tandem-handoff-refused"] == "malformed"
    legs.tokens_of(legs.decode(stack.worker("decode"), prompt_of(2), handoff))


def test_bad_handoffs_that_carry_a_true_signature_don_t_harm_the_engine(stack: Stack) -> None:
    """What only a worker with the key could send: the engine checks it against its prompt, its peer and the fence."""
    prefill_url, decode_url = stack.worker("prefill"), stack.worker("decode")
    generations, keys = stack.generations(), HandoffKeys(HANDOFF_KEY)
    valid = legs.prefill(prefill_url, prompt_of(3), lease_s=60)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("tandem_kv_refusals_total:blocks", {"remote_block_ids": valid["remote_block_ids"][:1]}),
        ("tandem_kv_failures_total", {"remote_block_ids": [1 << 40] * len(valid["remote_block_ids"])}),
        ("tandem_kv_failures_total", {"lease_slot": 1 << 20}),
        ("tandem_kv_expired_reads_total", {"lease_serial": 1, "lease_slot": 0}),
        ("tandem_kv_refusals_total:prompt", {"prompt_digest": "0" * 64}),
        ("tandem_kv_refusals_total:prompt", {"remote_num_tokens": 128, "remote_block_ids": [1]}),
    ]
    expected = legs.tokens_of(legs.decode(decode_url, prompt_of(3), None))
    for number, (counter, change) in enumerate(wrong):
        forged = keys.sign(KVHandoff.model_validate(valid | {"handoff_id": f"{number:032x}"} | change))
        # Decode holds this prompt by now, so another one is asked where its rows would be wanted.
        fresh = [*prompt_of(3)[:-1], 499 - number]
        if not counter.endswith("prompt"):
            forged = keys.sign(forged.model_copy(update={"prompt_digest": prompt_digest(fresh, NO_SALT)}))
        before = legs.samples(decode_url)[counter]
        tokens = legs.tokens_of(legs.decode(decode_url, fresh, forged.model_dump(exclude_none=True)))
        assert legs.counted_within(decode_url, counter, before + 1, 2), change
        assert tokens == legs.tokens_of(legs.decode(decode_url, fresh, None))
    assert legs.tokens_of(legs.decode(decode_url, prompt_of(3), valid)) == expected
    assert stack.generations() == generations, "an engine died"
    assert legs.no_lease_within(prefill_url, 2)


def test_a_foreign_engine_and_an_unregistered_address_are_refused(stack: Stack) -> None:
    keys = HandoffKeys(HANDOFF_KEY)
    valid = legs.prefill(stack.worker("prefill"), prompt_of(4))
    for change in ({"remote_engine_id": "prefill-9-elsewhere"}, {"remote_port": 9}, {"remote_host": "localhost"}):
        forged = keys.sign(KVHandoff.model_validate(valid | change)).model_dump(exclude_none=True)
        answer = legs.decode(stack.worker("decode"), prompt_of(4), forged)
        assert (answer.status_code, answer.headers["x-tandem-handoff-refused"]) == (403, "unregistered")
    version = keys.sign(KVHandoff.model_validate(valid | {"wire_version": 1})).model_dump(exclude_none=True)
    answer = legs.decode(stack.worker("decode"), prompt_of(4), version)
    assert (answer.status_code, answer.headers["x-tandem-handoff-refused"]) == (400, "version")
    legs.tokens_of(legs.decode(stack.worker("decode"), prompt_of(4), valid))


def test_prefill_refuses_asks_that_are_none(stack: Stack) -> None:
    url = stack.worker("prefill")
    for params in ({"do_remote_prefill": True}, {"do_remote_decode": True}, {"handoff_id": "short"}, 5, "x", ["a"]):
        answer = legs.send(url, legs.GREEDY | {"prompt": prompt_of(5), "max_tokens": 1, "kv_transfer_params": params})
        assert (answer.status_code, answer.headers["x-tandem-handoff-refused"]) == (400, "malformed"), params
    smuggled = {"vllm_xargs": {"kv_transfer_params": "x"}}
    answer = legs.send(url, legs.GREEDY | {"prompt": prompt_of(5), "max_tokens": 1} | smuggled)
    assert answer.status_code == 400
    assert legs.no_lease_within(url, 2)

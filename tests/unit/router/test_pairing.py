"""Two workers pair when all that decides about their KV is equal; where it isn't, each difference is named."""

from typing import Any

import pytest

from router.pairing import MAX_NAMED_WORKERS, MAX_VALUE_CHARS, find_mismatch, is_pair, is_same_identity
from wire.versions import HISTORY, WIRE_VERSION, may_pair
from wire.worker import WorkerCheck, WorkerRole


def prefill(worker_id: str = "prefill-0", *, version: int = WIRE_VERSION, model: str = "m", **fp: str) -> WorkerCheck:
    return describe(worker_id, WorkerRole.PREFILL, version, model, fp)


def decode(worker_id: str = "decode-1", *, version: int = WIRE_VERSION, model: str = "m", **fp: str) -> WorkerCheck:
    return describe(worker_id, WorkerRole.DECODE, version, model, fp)


def describe(worker_id: str, role: WorkerRole, version: int, model: str, fingerprint: dict[str, str]) -> WorkerCheck:
    return WorkerCheck(worker_id=worker_id, role=role, model=model, wire_version=version, fingerprint=fingerprint)


def mismatch(newcomer: WorkerCheck, *others: WorkerCheck) -> str:
    text = find_mismatch(newcomer, others)
    assert text is not None
    return text


def test_equal_workers_pair_whichever_is_new() -> None:
    assert is_pair(prefill(a="1", b="2"), decode(b="2", a="1"))
    assert find_mismatch(prefill(a="1"), [decode(a="1")]) is None
    assert find_mismatch(decode(a="1"), [prefill(a="1")]) is None


@pytest.mark.parametrize(
    "other", [decode(a="2"), decode(), decode(a="1", b=""), decode(a="1", model="n"), decode(a="1", version=1)]
)
def test_a_difference_in_model_version_or_fingerprint_is_no_pair(other: WorkerCheck) -> None:
    assert not is_pair(prefill(a="1"), other)


@pytest.mark.parametrize("prefill_version", HISTORY)
@pytest.mark.parametrize("decode_version", HISTORY)
def test_versions_pair_as_the_wire_says(prefill_version: int, decode_version: int) -> None:
    pairs = is_pair(prefill(version=prefill_version), decode(version=decode_version))
    assert pairs == may_pair(prefill_version, decode_version)


def test_a_new_decode_may_serve_an_old_prefill_and_not_the_reverse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.pairing.may_pair", lambda prefill_version, decode_version: prefill_version <= 1)
    old, new = prefill(version=1), decode(version=2)
    assert find_mismatch(old, [new]) is None
    assert find_mismatch(new, [old]) is None
    new_prefill, old_decode = prefill(version=2), decode(version=1)
    assert "2 on prefill-0, 1 on decode-1" in mismatch(new_prefill, old_decode)
    assert "1 on decode-1, 2 on prefill-0" in mismatch(old_decode, new_prefill)


def test_the_first_worker_fits() -> None:
    assert find_mismatch(prefill(a="1"), []) is None


def test_one_fit_among_several_is_enough() -> None:
    assert find_mismatch(decode(a="1"), [prefill("p0", a="2"), prefill("p1", a="1")]) is None


def test_each_difference_is_named_with_both_sides() -> None:
    text = mismatch(decode(max_model_len="4096", dtype="f4", same="x"), prefill(max_model_len="8192", same="x"))
    assert text == (
        "Decode worker decode-1 pairs with no prefill worker of model `m`: "
        "dtype differs: f4 on decode-1, nothing on prefill-0; "
        "max_model_len differs: 4096 on decode-1, 8192 on prefill-0."
    )


def test_a_key_that_only_the_other_side_has_is_named() -> None:
    assert "scales differs: nothing on decode-1, e4m3 on prefill-0" in mismatch(decode(), prefill(scales="e4m3"))


def test_versions_are_named_with_both_sides() -> None:
    text = mismatch(prefill(version=2), decode(version=1))
    assert text.endswith("wire versions don't pair: 2 on prefill-0, 1 on decode-1.")


def test_several_others_are_named_together_by_value() -> None:
    text = mismatch(decode(a="1"), prefill("p0", a="2"), prefill("p1", a="3"), prefill("p2", a="2"))
    assert "a differs: 1 on decode-1, 2 on p0 and p2, 3 on p1." in text


def test_a_message_stays_short_whatever_the_others_say() -> None:
    others = [prefill(f"p{n}", a="x" * 10_000) for n in range(200)]
    text = mismatch(decode(a="y" * 10_000), *others)
    assert "p0 and p1 and p2 and p3 and 196 more" in text
    assert len(text) < 4 * MAX_VALUE_CHARS + 100 * MAX_NAMED_WORKERS


def test_keys_are_part_of_an_identity() -> None:
    assert not is_same_identity(prefill().model_copy(update={"handoff_key": "0" * 12}), prefill())
    assert not is_same_identity(decode().model_copy(update={"handoff_keys": ("0" * 12,)}), decode())


@pytest.mark.parametrize("change", [{"a": "2"}, {"model": "n"}, {"version": 1}])
def test_an_identity_is_all_that_decides_about_pairs(change: dict[str, Any]) -> None:
    before: dict[str, Any] = {"a": "1"}
    assert is_same_identity(decode("one", **before), decode("two", **before))
    assert not is_same_identity(decode(**before), decode(**(before | change)))
    assert not is_same_identity(decode(**before), prefill(**before))

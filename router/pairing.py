"""Which prefill and decode workers may serve a request together, and what to tell one that fits none of the others.

Pure: works on what workers say of themselves, as registrations or as checks before one.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from wire.handoff import HANDOFF_KEY_ENV
from wire.versions import may_pair
from wire.worker import WorkerCheck, WorkerRegistration, WorkerRole

Identity = WorkerCheck | WorkerRegistration
# Bounds on what one message quotes of values and names that others chose.
MAX_VALUE_CHARS = 96
MAX_NAMED_WORKERS = 4


def is_same_identity(one: Identity, other: Identity) -> bool:
    """Whether both say the same of all that decides with whom they pair."""
    return _what_decides(one) == _what_decides(other)


def is_pair(prefill: Identity, decode: Identity) -> bool:
    """Whether ``decode`` can read what ``prefill`` computes, writes and signs."""
    return (
        prefill.model == decode.model
        and may_pair(prefill.wire_version, decode.wire_version)
        and prefill.fingerprint == decode.fingerprint
        and _accepts(decode, prefill)
    )


def find_mismatch(newcomer: Identity, others: Sequence[Identity]) -> str | None:
    """Why ``newcomer`` pairs with none of ``others``, all of the other role and of its model; None where it does.

    Each difference is named with both sides' values: "max_model_len differs: 4096 on decode-1, 8192 on prefill-0".
    """
    if not others or any(is_pair(*_by_role(newcomer, other)) for other in others):
        return None
    reasons = [
        *_version_reasons(newcomer, others),
        *_key_reasons(newcomer, others),
        *_fingerprint_reasons(newcomer, others),
    ]
    return (
        f"{newcomer.role.value.capitalize()} worker {newcomer.worker_id} pairs with no {others[0].role.value} worker "
        f"of model `{newcomer.model[:MAX_VALUE_CHARS]}`: {'; '.join(reasons)}."
    )


def _what_decides(one: Identity) -> tuple[object, ...]:
    return one.role, one.model, one.wire_version, one.fingerprint, one.handoff_key, one.handoff_keys


def _accepts(decode: Identity, prefill: Identity) -> bool:
    """Whether ``decode`` has the key that ``prefill`` signs with; where one of them doesn't say, it may."""
    if prefill.handoff_key is None or not decode.handoff_keys:
        return True
    return prefill.handoff_key in decode.handoff_keys


def _by_role(one: Identity, other: Identity) -> tuple[Identity, Identity]:
    return (one, other) if one.role is WorkerRole.PREFILL else (other, one)


def _version_reasons(newcomer: Identity, others: Sequence[Identity]) -> Iterable[str]:
    strangers: dict[str, list[str]] = defaultdict(list)
    for other in others:
        prefill, decode = _by_role(newcomer, other)
        if not may_pair(prefill.wire_version, decode.wire_version):
            strangers[str(other.wire_version)].append(other.worker_id)
    if strangers:
        yield "wire versions don't pair: " + _both_sides(str(newcomer.wire_version), newcomer, strangers)


def _key_reasons(newcomer: Identity, others: Sequence[Identity]) -> Iterable[str]:
    strangers: dict[str, list[str]] = defaultdict(list)
    for other in others:
        prefill, decode = _by_role(newcomer, other)
        if not _accepts(decode, prefill):
            strangers[_shown(_key_of(other))].append(other.worker_id)
    if strangers:
        yield f"ids of {HANDOFF_KEY_ENV} don't pair: " + _both_sides(_shown(_key_of(newcomer)), newcomer, strangers)


def _key_of(one: Identity) -> str | None:
    return one.handoff_key if one.role is WorkerRole.PREFILL else " or ".join(one.handoff_keys)


def _fingerprint_reasons(newcomer: Identity, others: Sequence[Identity]) -> Iterable[str]:
    for key in sorted({key for identity in (newcomer, *others) for key in identity.fingerprint}):
        mine = newcomer.fingerprint.get(key)
        strangers: dict[str, list[str]] = defaultdict(list)
        for other in others:
            theirs = other.fingerprint.get(key)
            if theirs != mine:
                strangers[_shown(theirs)].append(other.worker_id)
        if strangers:
            yield f"{_shown(key)} differs: " + _both_sides(_shown(mine), newcomer, strangers)


def _both_sides(mine: str, newcomer: Identity, strangers: dict[str, list[str]]) -> str:
    sides = [f"{mine} on {newcomer.worker_id}"]
    sides += [f"{value} on {_names(workers)}" for value, workers in strangers.items()]
    return ", ".join(sides)


def _names(worker_ids: Sequence[str]) -> str:
    named, num_more = worker_ids[:MAX_NAMED_WORKERS], len(worker_ids) - MAX_NAMED_WORKERS
    return " and ".join([*named, f"{num_more} more"] if num_more > 0 else named)


def _shown(value: str | None) -> str:
    if value is None:
        return "nothing"
    return value if len(value) <= MAX_VALUE_CHARS else value[:MAX_VALUE_CHARS] + "..."

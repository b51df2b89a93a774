"""What a mock prefill promises and a mock decode checks, in the two dialects of ``kv_transfer_params``. Pure.

tandem   the router sends a HandoffRequest, prefill answers with a KVHandoff (``wire.handoff``)
stock    the router sends {"do_remote_decode": true, ...}, prefill answers as vLLM's NixlConnector does

Nothing here moves blocks. A decode leg has to bring back exactly what prefill answered for the same prompt, once.
"""

import json
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import count
from typing import Any

from wire.handoff import HandoffKeys, KVHandoff, unsigned
from wire.versions import WIRE_VERSION

# Bytes of a prompt that stand for one block of the cache: 128 tokens of four bytes.
BLOCK_BYTES = 512
PARAMS_KEY = b'"kv_transfer_params"'
_ID_SLOT = "f" * 32
_DECODER = json.JSONDecoder()


@dataclass(slots=True)
class Faults:
    """What went wrong at the engines since the last reset; all of it must stay 0."""

    no_handoff: int = 0
    """Decode legs without a handoff: the engine would compute the prompt again, unseen."""
    wrong_handoff: int = 0
    """Decode legs whose handoff was not granted, was read before, or differs from what prefill answered."""
    other_prompt: int = 0
    """Decode legs whose prompt is not the one that was prefilled."""
    dirty_prefill: int = 0
    """Prefill legs that would make more than one token, or stream."""
    bad_request: int = 0
    """Requests that are no chat request of this benchmark, or whose prompt has no end."""

    def total(self) -> int:
        return sum(asdict(self).values())


@dataclass(slots=True)
class LeaseBook:
    """Leases of all mock prefills by id: the prompt that each is for, as its tag and its length."""

    faults: Faults = field(default_factory=Faults)
    num_granted: int = 0
    num_read: int = 0
    num_released: int = 0
    _live: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=lambda: count(1))

    @property
    def num_live(self) -> int:
        """Granted, neither read nor released: a real prefill would keep these blocks until they expire."""
        return len(self._live)

    def reset(self) -> None:
        """Counts start at 0 again, and leases that are live are forgotten: the next round is not charged with them."""
        self.faults = Faults()
        self._live.clear()
        self.num_granted = self.num_read = self.num_released = 0

    def grant(self, ask: dict[str, Any] | None, tag: bytes, prompt_bytes: int) -> bytes | None:
        """The answer's ``kv_transfer_params`` as JSON; None if ``ask`` asks for no handoff."""
        if ask is None or ask.get("do_remote_decode") is not True:
            return None
        is_tandem = "handoff_id" in ask
        lease_id = str(ask["handoff_id"]) if is_tandem else f"{next(self._numbers):032x}"
        self._live[lease_id] = (tag, prompt_bytes)
        self.num_granted += 1
        before, after, _ = _answer(is_tandem, _num_blocks(prompt_bytes))
        return before + lease_id.encode() + after

    def read(self, params: dict[str, Any] | None, tag: bytes, prompt_bytes: int) -> None:
        """Check decode's ``params`` and end the lease; what is wrong is counted."""
        if params is None or params.get("do_remote_prefill") is not True:
            self.faults.no_handoff += 1
            return
        is_tandem = "handoff_id" in params
        lease_id = params.get("handoff_id" if is_tandem else "remote_request_id")
        lease = self._live.pop(lease_id, None) if isinstance(lease_id, str) else None
        if lease is None:
            self.faults.wrong_handoff += 1
            return
        self.num_read += 1
        if lease != (tag, prompt_bytes):
            self.faults.other_prompt += 1
        _, _, fields = _answer(is_tandem, _num_blocks(lease[1]))
        # A router may spell the JSON anew and may add members of its own; what prefill said must all be there.
        if any(params.get(name) != value for name, value in fields.items()):
            self.faults.wrong_handoff += 1

    def release(self, handoff_id: str) -> bool:
        """Whether that lease was live; releasing twice is harmless, as with a real prefill."""
        was_live = self._live.pop(handoff_id, None) is not None
        self.num_released += was_live
        return was_live

    def counts(self) -> dict[str, int]:
        """Everything that is counted, for the reports."""
        return asdict(self.faults) | {
            "granted": self.num_granted,
            "read": self.num_read,
            "released": self.num_released,
            "live": self.num_live,
        }


def find_params(body: bytes) -> dict[str, Any] | None:
    """The object under ``kv_transfer_params``; None if it is missing, null or malformed.

    Parses that value alone: the rest of a large body costs the mock next to nothing.
    """
    at = body.rfind(PARAMS_KEY)
    if at < 0:
        return None
    text = body[at + len(PARAMS_KEY) :].decode().lstrip()
    try:
        value, _ = _DECODER.raw_decode(text.removeprefix(":").lstrip())
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _num_blocks(prompt_bytes: int) -> int:
    return 1 + prompt_bytes // BLOCK_BYTES


@cache
def _answer(is_tandem: bool, num_blocks: int) -> tuple[bytes, bytes, dict[str, Any]]:
    """The JSON before and after the lease's id, and every other member of it."""
    fields = _tandem_handoff(num_blocks) if is_tandem else _stock_handoff(num_blocks)
    before, after = json.dumps(fields, separators=(",", ":")).encode().split(_ID_SLOT.encode())
    return before, after, {name: value for name, value in fields.items() if value != _ID_SLOT}


def _tandem_handoff(num_blocks: int) -> dict[str, Any]:
    handoff: KVHandoff = unsigned(
        wire_version=WIRE_VERSION,
        handoff_id=_ID_SLOT,
        num_readers=1,
        remote_engine_id="mock-prefill",
        remote_request_id="chatcmpl-mock",
        remote_host="127.0.0.1",
        remote_port=5600,
        remote_block_ids=list(range(num_blocks)),
        remote_num_tokens=num_blocks * 128,
        prompt_digest="d" * 64,
        tp_size=1,
        lease_s=30.0,
        lease_slot=5,
        lease_serial=17,
    )
    # Signed once, so the signature fits no id; routers have no key to see that, and decode compares with the grant.
    return HandoffKeys("mock").sign(handoff).model_dump(mode="json", exclude_none=True)


def _stock_handoff(num_blocks: int) -> dict[str, Any]:
    """vLLM's spelling and order (``nixl/pull_scheduler.py``)."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(num_blocks))],
        "remote_engine_id": "mock-prefill",
        "remote_request_id": _ID_SLOT,
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": num_blocks * 128,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
    }

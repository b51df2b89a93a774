"""Named values and stand-ins that the unit tests of the transfer share."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from vllm.v1.request import RequestStatus

from wire.handoff import HandoffKeys, KVHandoff, prompt_digest, unsigned
from wire.versions import WIRE_VERSION

BLOCK = 128
HANDOFF_ID = "ab" * 16
KEY = "key of the unit tests"
KEYS = HandoffKeys(KEY)
FINGERPRINT = {"dtype": "bfloat16", "block_size": "128"}
ENGINE = "prefill-0-life1"
HOST, PORT = "10.0.0.7", 5600


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def wait_for(happened: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait for another thread, for no longer than a busy machine may need."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


@contextmanager
def log_lines(level: int = logging.WARNING) -> Iterator[list[str]]:
    """What the transfer logs meanwhile, at ``level`` and above; vLLM's loggers may not reach pytest's."""
    lines: list[str] = []
    handler = logging.Handler(level)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("vllm.tandem.kv_transfer")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def prompt(num_tokens: int, first: int = 0) -> list[int]:
    return list(range(first, first + num_tokens))


def digest(token_ids: Sequence[int]) -> str:
    """As the connector makes it of a request without LoRA and without a cache salt."""
    return prompt_digest(token_ids, "\n")


def handoff(num_tokens: int = 300, **changes: Any) -> KVHandoff:
    """A signed handoff of ``prompt(num_tokens)``; ``changes`` are signed too."""
    num_blocks = -(-num_tokens // BLOCK)
    values: dict[str, Any] = {
        "wire_version": WIRE_VERSION,
        "handoff_id": HANDOFF_ID,
        "num_readers": 1,
        "remote_engine_id": ENGINE,
        "remote_request_id": "cmpl-prefill",
        "remote_host": HOST,
        "remote_port": PORT,
        "remote_block_ids": [7, 3, 9, 1, 8, 2][:num_blocks],
        "remote_num_tokens": num_tokens,
        "prompt_digest": digest(prompt(num_tokens)),
        "tp_size": 1,
        "lease_s": 30.0,
        "lease_slot": 5,
        "lease_serial": 17,
    }
    return KEYS.sign(unsigned(**(values | changes)))


def request(params: object, *, token_ids: Sequence[int] | None = None, request_id: str = "req", **changes: Any) -> Any:
    """What the connector looks at in one of vLLM's requests."""
    ids = prompt(300) if token_ids is None else list(token_ids)
    values: dict[str, Any] = {
        "request_id": request_id,
        "prompt_token_ids": ids,
        "num_prompt_tokens": len(ids),
        "kv_transfer_params": params,
        "status": RequestStatus.FINISHED_LENGTH_CAPPED,
        "lora_request": None,
        "cache_salt": None,
    }
    return SimpleNamespace(**(values | changes))

"""A worker process whose engine is a dictionary of answers."""

import json
from typing import Any

import pytest

from kv_transfer import side_channel
from tests.unit.vllm_engine.factories import identity, worker_config
from vllm_engine.state import WorkerProcess
from wire.errors import TransferFailed
from wire.worker import WorkerState


class Engine:
    """Answers the side channel's verbs; None stands for silence."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.status: Any = {"num_leases": 2, "row_bytes": 1440}
        self.is_silent = False
        self.told: list[Any] = []
        monkeypatch.setattr(side_channel, "ask", self._ask)

    def _ask(self, host: str, port: int, verb: bytes, payload: bytes = b"", *, token: str, timeout_s: float) -> bytes:
        if self.is_silent:
            raise TransferFailed("no answer from the side channel")
        if verb == side_channel.PEERS:
            self.told.append(json.loads(payload))
            return b""
        return json.dumps(self.status).encode()


def process(**changes: Any) -> WorkerProcess:
    engine: Any = None
    made = WorkerProcess(worker_config(**changes), identity(), engine)
    made.state, made.row_bytes = WorkerState.READY, 1440
    return made

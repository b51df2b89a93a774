"""What the scheduler side tells the worker side with each engine step."""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata, KVConnectorMetadata

from wire.handoff import KVHandoff


@dataclass(slots=True)
class HelloMetadata(KVConnectorHandshakeMetadata):
    """One rank's encoded hello, on its way from the worker to the scheduler side."""

    hello: bytes


@dataclass(slots=True)
class Pull:
    """Decode: read ``remote_block_ids`` into ``block_ids``. Both empty: only tell prefill that nobody will read."""

    request_id: str
    handoff: KVHandoff
    block_ids: list[int]
    remote_block_ids: list[int]
    asked_s: float  # monotonic time at which the scheduler asked


@dataclass(slots=True)
class Hold:
    """Prefill: the blocks of ``request_id`` wait for ``num_readers`` readers of ``handoff_id``."""

    request_id: str
    handoff_id: str
    num_readers: int


@dataclass(slots=True)
class StepMetadata(KVConnectorMetadata):
    pulls: list[Pull] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    is_idle: bool = False  # the step computes nothing: the engine only polls for transfers
    drops: list[str] = field(default_factory=list)  # prefill: request ids whose blocks are given back unread

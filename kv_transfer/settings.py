"""What both roles of the connector take from vLLM's configuration, read in one place."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from wire.worker import Fingerprint
from wire.worker_config import KVTransferConfig

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class ConnectorConfig(KVTransferConfig):
    """The connector's own section of vLLM's ``kv_transfer_config``."""

    fingerprint: Fingerprint = Field(description="what a peer must have in common with this worker")

    def extra_peer_addresses(self) -> list[tuple[str, int]]:
        """``extra_peers`` as (host, port)."""
        return [(host, int(port)) for host, _, port in (peer.rpartition(":") for peer in self.extra_peers)]


@dataclass(frozen=True, slots=True)
class ConnectorSettings:
    """The configured side of one engine; sizes of the cache are read from vLLM's cache configuration beside it."""

    config: ConnectorConfig
    engine_id: str
    tp_size: int
    num_kv_heads: int
    """Of the whole model, over all ranks."""
    recomputes: bool
    """Whether a prompt whose KV did not cross is computed on decode; else the request fails."""

    @classmethod
    def from_vllm(cls, vllm_config: "VllmConfig") -> "ConnectorSettings":
        transfer = vllm_config.kv_transfer_config
        return cls(
            config=ConnectorConfig.model_validate(transfer.kv_connector_extra_config),
            engine_id=transfer.engine_id,
            tp_size=vllm_config.parallel_config.tensor_parallel_size,
            num_kv_heads=vllm_config.model_config.get_total_num_kv_heads(),
            recomputes=transfer.kv_load_failure_policy == "recompute",
        )

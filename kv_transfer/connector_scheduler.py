"""The connector inside the engine core: decides what is pulled, held and given back; never touches KV memory."""

import json
import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from vllm.v1.request import RequestStatus

from kv_transfer import handshake, side_channel
from kv_transfer.cache_row import block_size_of, row_bytes_of
from kv_transfer.connector_stats import RowConnectorStats
from kv_transfer.lease import DropReason, LeaseTable
from kv_transfer.step import HelloMetadata, Hold, Pull, StepMetadata
from wire.handoff import WIRE_VERSION, HandoffRequest, KVHandoff, ReleaseReply, ReleaseRequest
from wire.worker_config import CLUSTER_TOKEN_ENV, KVTransferConfig

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.tandem.kv_transfer")

# Statuses that end a prefill leg well; any other has no complete KV to hand off.
_COMPLETE = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


class SchedulerSide:
    """State of one engine's handoffs, owned by the engine core's thread.

    Only the lease table is also reached from the side channel's thread.
    """

    def __init__(
        self,
        vllm_config: "VllmConfig",
        kv_cache_config: "KVCacheConfig",
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        transfer = vllm_config.kv_transfer_config
        self._config = KVTransferConfig.model_validate(transfer.kv_connector_extra_config)
        self._engine_id: str = transfer.engine_id
        self._tp_size: int = vllm_config.parallel_config.tensor_parallel_size
        self._row_bytes = row_bytes_of(kv_cache_config)
        self._block_size = block_size_of(kv_cache_config)
        self._clock, self._wall_clock = clock, wall_clock
        self._leases = LeaseTable(clock)
        self._meta = StepMetadata()
        self._handoffs: dict[str, KVHandoff] = {}  # decode: request id -> handoff not yet acted on
        self._stats = RowConnectorStats()
        self._reported_leases = -1
        self._server: side_channel.SideChannelServer | None = None

    # Side channel

    def start_side_channel(self, metadata: dict[int, HelloMetadata]) -> None:
        """Answer peers' handshakes and the API process; called once with all ranks' hellos.

        Raises:
            zmq.ZMQError: the configured port is taken.
        """
        hellos = handshake.encode_all([metadata[rank].hello for rank in sorted(metadata)])
        handlers: dict[bytes, Callable[[bytes], bytes]] = {
            side_channel.HELLO: lambda _: hellos,
            side_channel.RELEASE: self._on_release,
            side_channel.STATUS: lambda _: json.dumps(
                {"num_leases": len(self._leases), "row_bytes": self._row_bytes}
            ).encode(),
        }
        token = os.environ.get(CLUSTER_TOKEN_ENV, "")
        self._server = side_channel.SideChannelServer(self._config.host, self._config.port, handlers, token)

    def _on_release(self, payload: bytes) -> bytes:
        request = ReleaseRequest.model_validate_json(payload)
        return ReleaseReply(released=self._leases.release(request.handoff_id)).model_dump_json().encode()

    # Decode: pulling

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int, bool]:
        """Tokens of the prompt that lie on prefill and not here; may be asked repeatedly for one request."""
        handoff = self._handoff_for(request)
        missing = handoff.remote_num_tokens - num_computed_tokens if handoff else 0
        return (missing, True) if missing > 0 else (0, False)

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        """Turn the handoff into a pull of exactly the blocks that decode lacks, once."""
        handoff = self._handoff_for(request)
        if handoff is None:
            return
        mine: list[int] = []
        theirs: list[int] = []
        if num_external_tokens:
            first = (handoff.remote_num_tokens - num_external_tokens) // self._block_size
            last = -(-handoff.remote_num_tokens // self._block_size)
            mine = list(blocks.get_block_ids()[0][first:last])
            theirs = handoff.remote_block_ids[first:last]
        self._consume(request)
        self._meta.pulls.append(Pull(request.request_id, handoff, mine, theirs, self._clock()))

    def _handoff_for(self, request: "Request") -> KVHandoff | None:
        """The request's handoff while it is not acted on; a bad one is refused, and the prompt is computed here."""
        params = _params(request)
        if not params.get("do_remote_prefill"):
            return None
        if (known := self._handoffs.get(request.request_id)) is not None:
            return known
        reason = None
        try:
            handoff = KVHandoff.model_validate(params)
        except ValidationError as e:
            reason = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in e.errors())
        else:
            reason = self._misfit(handoff, request)
        if reason is not None:
            logger.warning("handoff of request %s refused: %s", request.request_id, reason)
            self._stats.count("refused")
            params["do_remote_prefill"] = False
            return None
        self._handoffs[request.request_id] = handoff
        return handoff

    def _misfit(self, handoff: KVHandoff, request: "Request") -> str | None:
        if handoff.wire_version != WIRE_VERSION:
            return f"wire version {handoff.wire_version}, this engine speaks {WIRE_VERSION}"
        if handoff.tp_size != self._tp_size:
            return f"prefill has tp_size {handoff.tp_size}, this engine {self._tp_size}"
        if handoff.remote_num_tokens != request.num_prompt_tokens:
            return f"it covers {handoff.remote_num_tokens} tokens, the prompt has {request.num_prompt_tokens}"
        needed = -(-handoff.remote_num_tokens // self._block_size)
        if len(handoff.remote_block_ids) != needed:
            return f"it names {len(handoff.remote_block_ids)} blocks, {needed} hold its tokens"
        return None

    def _consume(self, request: "Request") -> None:
        # After a preemption the remote blocks are gone: from here on the request is like any other.
        del self._handoffs[request.request_id]
        _params(request)["do_remote_prefill"] = False

    # Prefill: holding

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Prefill: hold the blocks and say where they are. Decode: let go of a handoff that was never pulled."""
        if (handoff := self._handoff_for(request)) is not None:
            self._consume(request)
            self._meta.pulls.append(Pull(request.request_id, handoff, [], [], self._clock()))
            return False, None
        params = _params(request)
        if not params.get("do_remote_decode") or request.status not in _COMPLETE:
            return False, None
        try:
            wish = HandoffRequest.model_validate(params)
        except ValidationError as e:
            logger.warning("no handoff for request %s: %s", request.request_id, e.errors()[0]["msg"])
            self._stats.count("refused")
            return False, None
        return self._hold(request, block_ids, wish)

    def _hold(
        self, request: "Request", block_ids: list[int], wish: HandoffRequest
    ) -> tuple[bool, dict[str, Any] | None]:
        # Blocks past the prompt (the leg's own token may open one) are not part of the handoff.
        blocks = block_ids[: -(-request.num_prompt_tokens // self._block_size)]
        if not self._leases.grant(wish.handoff_id, request.request_id, self._config.lease_s):
            return False, None
        self._stats.count("leases_granted")
        self._meta.holds.append(Hold(request.request_id, wish.handoff_id, wish.num_readers))
        handoff = KVHandoff(
            wire_version=WIRE_VERSION,
            handoff_id=wish.handoff_id,
            num_readers=wish.num_readers,
            remote_engine_id=self._engine_id,
            remote_request_id=request.request_id,
            remote_host=self._config.host,
            remote_port=self._config.port,
            remote_block_ids=blocks,
            remote_num_tokens=request.num_prompt_tokens,
            tp_size=self._tp_size,
            lease_expires_unix_s=self._wall_clock() + self._config.lease_s,
        )
        return True, handoff.model_dump(exclude_none=True)

    # Each step

    def build_meta(self, num_scheduled_tokens: int) -> StepMetadata:
        """What the workers do with this step; also hands out leases that are released or have run out."""
        self._meta.is_idle = num_scheduled_tokens == 0
        for request_id, reason in self._leases.take_due():
            self._stats.count("leases_released" if reason is DropReason.RELEASED else "leases_expired")
            if reason is DropReason.EXPIRED:
                logger.warning("blocks of request %s were never read; their lease ran out", request_id)
            self._meta.drops.append(request_id)
        meta, self._meta = self._meta, StepMetadata()
        return meta

    def on_worker_output(self, output: "KVConnectorOutput") -> None:
        """Every rank has given back the blocks of ``finished_sending``: their leases end."""
        for request_id in output.finished_sending or ():
            self._leases.end(request_id)

    def take_stats(self) -> RowConnectorStats | None:
        if (num_leases := len(self._leases)) != self._reported_leases:
            self._reported_leases = num_leases
            self._stats.set_leases(num_leases)
        return self._stats.take()

    def shutdown(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def _params(request: "Request") -> dict[str, Any]:
    """The request's handoff parameters; anything but an object counts as none (they can come in by vllm_xargs)."""
    params = request.kv_transfer_params
    return params if isinstance(params, dict) else {}

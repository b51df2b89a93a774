"""The connector inside the engine core: joins prefill's and decode's side to the side channel and to vLLM's steps.

Never touches KV memory.
"""

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from kv_transfer import side_channel
from kv_transfer.cache_row import block_size_of, row_bytes_of
from kv_transfer.connector_stats import RowConnectorStats
from kv_transfer.courier import Courier
from kv_transfer.decode_side import DecodeSide
from kv_transfer.fingerprint import differences
from kv_transfer.handshake import Greeting, encode_greeting
from kv_transfer.peer_book import PeerBook
from kv_transfer.pins import Pins
from kv_transfer.prefill_side import PrefillSide
from kv_transfer.settings import ConnectorSettings
from kv_transfer.step import DrainNews, HelloMetadata, StepMetadata
from wire.errors import TransferFailed
from wire.handoff import HANDOFF_KEY_ENV, HandoffKeys, ReleaseReply, ReleaseRequest
from wire.worker import KVPeer
from wire.worker_config import CLUSTER_TOKEN_ENV

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

_PEERS = TypeAdapter(tuple[KVPeer, ...])
_HANDOFF_IDS = TypeAdapter(list[str])
_SEND_TIMEOUT_S = 2.0


class SchedulerSide:
    """State of one engine's handoffs, owned by the engine core's thread; see the parts for what other threads reach."""

    def __init__(
        self,
        vllm_config: "VllmConfig",
        kv_cache_config: "KVCacheConfig",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings = ConnectorSettings.from_vllm(vllm_config)
        self._row_bytes = row_bytes_of(kv_cache_config)
        block_size = block_size_of(kv_cache_config)
        self._token = os.environ.get(CLUSTER_TOKEN_ENV, "")
        keys = HandoffKeys(os.environ.get(HANDOFF_KEY_ENV, ""))
        self._stats = RowConnectorStats()
        self._prefill = PrefillSide(settings, block_size, keys, clock)
        self._dialler = ThreadPoolExecutor(max_workers=4, thread_name_prefix="kv-handshake")
        self._peers = PeerBook(
            fingerprint=settings.config.fingerprint,
            num_kv_heads=settings.num_kv_heads,
            extra=settings.config.extra_peer_addresses(),
            dial=self._dial,
            executor=self._dialler,
            retry_s=settings.config.handshake_timeout_s,
            clock=clock,
            differences=lambda mine, theirs: differences(mine, theirs, my_role="decode", their_role="prefill"),
        )
        self._courier = Courier(self._send, renew_verb=side_channel.RENEW, release_verb=side_channel.RELEASE)
        self._decode = DecodeSide(
            block_size=block_size,
            recomputes=settings.recomputes,
            keys=keys,
            peers=self._peers,
            courier=self._courier,
            stats=self._stats,
            clock=clock,
        )
        self._pins = Pins()
        self._reported_leases: dict[str, int] = {}
        self._server: side_channel.SideChannelServer | None = None

    # Side channel

    def start_side_channel(self, metadata: dict[int, HelloMetadata]) -> None:
        """Answer peers' handshakes and the API process; called once with all ranks' hellos.

        Raises:
            zmq.ZMQError: the configured port is taken.
        """
        greeting = encode_greeting(
            Greeting(
                engine_id=self._settings.engine_id,
                fingerprint=self._settings.config.fingerprint,
                num_kv_heads=self._settings.num_kv_heads,
                hellos=[metadata[rank].hello for rank in sorted(metadata)],
            )
        )
        handlers: dict[bytes, Callable[[bytes], bytes]] = {
            side_channel.HELLO: lambda _: greeting,
            side_channel.RELEASE: self._on_release,
            side_channel.RENEW: self._on_renew,
            side_channel.PEERS: self._on_peers,
            side_channel.STATUS: self._on_status,
        }
        config = self._settings.config
        self._server = side_channel.SideChannelServer(config.host, config.port, handlers, self._token)

    def _on_release(self, payload: bytes) -> bytes:
        request = ReleaseRequest.model_validate_json(payload)
        released = self._prefill.release(request.handoff_id, request.reader)
        return ReleaseReply(released=released).model_dump_json().encode()

    def _on_renew(self, payload: bytes) -> bytes:
        return json.dumps(self._prefill.leases.renew(_HANDOFF_IDS.validate_json(payload))).encode()

    def _on_peers(self, payload: bytes) -> bytes:
        self._peers.register(_PEERS.validate_json(payload))
        return b""

    def _on_status(self, payload: bytes) -> bytes:
        return json.dumps({"num_leases": len(self._prefill.leases), "row_bytes": self._row_bytes}).encode()

    def _dial(self, host: str, port: int) -> bytes:
        limit_s = self._settings.config.handshake_timeout_s
        return side_channel.ask(host, port, side_channel.HELLO, token=self._token, timeout_s=limit_s)

    def _send(self, host: str, port: int, verb: bytes, payload: bytes) -> bytes:
        if not self._peers.may_dial(host, port):
            raise TransferFailed(f"{host}:{port} is not registered")
        return side_channel.ask(host, port, verb, payload, token=self._token, timeout_s=_SEND_TIMEOUT_S)

    # vLLM's scheduler

    def on_new_request(self, request: "Request") -> None:
        self._decode.on_new_request(request, _params(request))

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens of the prompt that lie on prefill and not here; may be asked repeatedly for one request."""
        return self._decode.num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        self._decode.after_alloc(request, list(blocks.get_block_ids()[0]), num_external_tokens)

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Prefill: hold the blocks and say where they are. Decode: let go of a handoff that was never pulled."""
        self._decode.request_finished(request)
        return self._prefill.request_finished(request, block_ids, _params(request), self._stats)

    def build_meta(self, scheduler_output: "SchedulerOutput") -> StepMetadata:
        """What the ranks do with this step."""
        meta = StepMetadata(is_idle=scheduler_output.total_num_scheduled_tokens == 0)
        self._prefill.fill(meta, scheduler_output.preempted_req_ids or set(), self._stats)
        self._decode.fill(meta)
        return meta

    def on_worker_output(self, output: "KVConnectorOutput") -> None:
        """Every rank has given back the blocks of ``finished_sending``; pulls of ``finished_recving`` have ended."""
        for request_id in output.finished_sending or ():
            self._prefill.leases.end(request_id)
        if isinstance(output.kv_connector_worker_meta, DrainNews):
            self._pins.note(output.kv_connector_worker_meta, self._decode.block_ids)  # before vLLM frees the blocks
        self._decode.on_worker_output(output)

    def bind_block_pool(self, pool: "BlockPool") -> None:
        self._pins.pool = pool

    def has_pins(self) -> bool:
        return len(self._pins) > 0

    def take_stats(self) -> RowConnectorStats | None:
        leases = {state.value: number for state, number in self._prefill.leases.num_in_state().items()}
        if leases != self._reported_leases:
            self._reported_leases = leases
            self._stats.set_leases(leases)
        return self._stats.take()

    def shutdown(self) -> None:
        self._courier.stop()
        self._dialler.shutdown(wait=False, cancel_futures=True)
        if self._server is not None:
            self._server.close()
            self._server = None


def _params(request: "Request") -> dict[str, Any]:
    """The request's handoff parameters; anything but an object counts as none (they can come in by vllm_xargs)."""
    params = request.kv_transfer_params
    return params if isinstance(params, dict) else {}

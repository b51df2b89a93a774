"""Decode inside the engine core: which handoffs are good, what is pulled, and what prefill is told."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kv_transfer.connector_stats import RowConnectorStats
from kv_transfer.courier import Courier
from kv_transfer.peer_book import ASKING, PeerBook, Refused
from kv_transfer.prefill_side import digest_of
from kv_transfer.step import PeerRows, Pull, StepMetadata
from wire.handoff import HandoffKeys, KVHandoff
from wire.refusal import Refusal
from wire.versions import WIRE_VERSION, may_pair

if TYPE_CHECKING:
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.tandem.kv_transfer")


@dataclass(slots=True)
class _Wanted:
    """A request's handoff from its arrival until its rows are here or given up."""

    handoff: KVHandoff
    refused: Refused | None = None
    is_pulled: bool = False
    block_ids: list[int] = field(default_factory=list)


class DecodeSide:
    """Owned by the engine core's thread.

    Args:
        recomputes: what a refused handoff leads to: the prompt is computed here, or the request fails.
    """

    def __init__(
        self,
        *,
        block_size: int,
        recomputes: bool,
        keys: HandoffKeys,
        peers: PeerBook,
        courier: Courier,
        stats: RowConnectorStats,
        clock: Callable[[], float],
    ) -> None:
        self._block_size, self._recomputes, self._keys = block_size, recomputes, keys
        self._peers, self._courier, self._stats, self._clock = peers, courier, stats, clock
        self._wanted: dict[str, _Wanted] = {}
        self._pulls: list[Pull] = []

    def on_new_request(self, request: "Request", params: dict[str, Any]) -> None:
        """Check the handoff, and keep its lease alive from now on, however long the request waits."""
        if not params.get("do_remote_prefill"):
            return
        try:
            handoff = KVHandoff.model_validate(params)
        except ValidationError as e:
            # The HTTP side refuses these; here only what came in another way, so there is nothing to fail.
            self._count_refusal(request, Refused(Refusal.MALFORMED, e.errors()[0]["msg"]))
            return
        wanted = self._wanted[request.request_id] = _Wanted(handoff, self._misfit(handoff, request))
        if wanted.refused is None:
            self._courier.keep(request.request_id, handoff)
            self._peers.look_up(handoff)  # an engine never met is asked while the request waits
        elif wanted.refused.reason is not Refusal.SIGNATURE:
            self._courier.release(handoff, request.request_id)  # ours, but not for this request

    def num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens of the prompt that lie on prefill and not here; None while prefill has not answered yet."""
        wanted = self._wanted.get(request.request_id)
        if wanted is None or wanted.is_pulled:
            return 0, False
        missing = request.num_prompt_tokens - num_computed_tokens  # a refused handoff may name any number
        if missing <= 0:
            return 0, False
        if wanted.refused is None:
            answer = self._peers.look_up(wanted.handoff)
            if answer is ASKING:
                return None, False
            if isinstance(answer, Refused):
                wanted.refused = answer
                self._courier.done(request.request_id)
                self._courier.release(wanted.handoff, request.request_id)
        if wanted.refused is not None and self._recomputes:
            return 0, False
        return missing, True

    def after_alloc(self, request: "Request", block_ids: list[int], num_external_tokens: int) -> None:
        """Turn the handoff into a pull of exactly the blocks that decode lacks, once."""
        wanted = self._wanted.get(request.request_id)
        if wanted is None or wanted.is_pulled:
            return
        if wanted.refused is not None:
            self._count_refusal(request, wanted.refused)
        if not num_external_tokens:
            self._let_go(request, wanted)
            return
        wanted.is_pulled = True
        handoff = wanted.handoff
        first = (request.num_prompt_tokens - num_external_tokens) // self._block_size
        last = -(-request.num_prompt_tokens // self._block_size)
        wanted.block_ids = block_ids[first:last]
        self._pulls.append(
            Pull(
                request.request_id,
                handoff,
                wanted.block_ids,
                handoff.remote_block_ids[first:last],
                self._clock(),
                refusal=f"{wanted.refused.reason}: {wanted.refused.text}" if wanted.refused is not None else None,
            )
        )

    def request_finished(self, request: "Request") -> None:
        """The request has ended, perhaps before it was scheduled; a pull under way ends by itself."""
        wanted = self._wanted.get(request.request_id)
        if wanted is not None and not wanted.is_pulled:
            self._let_go(request, wanted)

    def on_worker_output(self, output: "KVConnectorOutput") -> None:
        """Pulls that have ended on every rank."""
        for request_id in output.finished_recving or ():
            wanted = self._wanted.pop(request_id, None)
            self._courier.done(request_id)
            if wanted is not None and wanted.refused is None and request_id in output.failed_recving:
                self._courier.release(wanted.handoff, request_id)
                if self._recomputes:
                    self._stats.count("recomputes")

    def block_ids(self, request_id: str) -> list[int]:
        """The blocks that a pull under way fills; to be asked before its end is told to ``on_worker_output``."""
        return self._wanted[request_id].block_ids

    def fill(self, meta: StepMetadata) -> None:
        """Put this step's orders into ``meta``."""
        met, meta.fenced = self._peers.take_news()
        meta.peers = [PeerRows(greeting.engine_id, greeting.hellos) for greeting in met]
        meta.pulls, self._pulls = self._pulls, []

    def _let_go(self, request: "Request", wanted: _Wanted) -> None:
        del self._wanted[request.request_id]
        self._courier.done(request.request_id)
        if wanted.refused is None:
            self._courier.release(wanted.handoff, request.request_id)

    def _misfit(self, handoff: KVHandoff, request: "Request") -> Refused | None:
        if not self._keys.verify(handoff):
            return Refused(Refusal.SIGNATURE, "not signed by this deployment")
        if not may_pair(handoff.wire_version, WIRE_VERSION):
            return Refused(Refusal.VERSION, f"wire version {handoff.wire_version}, this engine speaks {WIRE_VERSION}")
        if handoff.remote_num_tokens != request.num_prompt_tokens or handoff.prompt_digest != digest_of(request):
            return Refused(Refusal.PROMPT, f"made for another prompt, of {handoff.remote_num_tokens} tokens")
        needed = -(-handoff.remote_num_tokens // self._block_size)
        if len(handoff.remote_block_ids) != needed:
            return Refused(Refusal.BLOCKS, f"names {len(handoff.remote_block_ids)} blocks, {needed} hold its tokens")
        return None

    def _count_refusal(self, request: "Request", refused: Refused) -> None:
        logger.warning("handoff of request %s refused: %s: %s", request.request_id, refused.reason, refused.text)
        self._stats.refuse(refused.reason)
        if self._recomputes:
            self._stats.count("recomputes")

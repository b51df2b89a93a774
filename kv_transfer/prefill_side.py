"""Prefill inside the engine core: which finished prompts are held for whom, and when they are given back."""

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from vllm.v1.request import RequestStatus

from kv_transfer.connector_stats import RowConnectorStats
from kv_transfer.lease import DropReason, LeaseTable
from kv_transfer.notes import Note
from kv_transfer.settings import ConnectorSettings
from kv_transfer.step import Hold, StepMetadata
from wire.handoff import MAX_REQUEST_ID_CHARS, HandoffKeys, HandoffRequest, prompt_digest, unsigned
from wire.refusal import Refusal
from wire.versions import WIRE_VERSION

if TYPE_CHECKING:
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.tandem.kv_transfer")

# Statuses that end a prefill leg well; any other has no complete KV to hand off.
_COMPLETE = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


def digest_of(request: "Request") -> str | None:
    """The request's prompt and all else that its KV depends on; None when token ids don't say it all."""
    is_more = getattr(request, "prompt_embeds", None) is not None or getattr(request, "mm_features", None)
    if request.prompt_token_ids is None or is_more:
        return None
    lora = request.lora_request.lora_name if request.lora_request is not None else ""
    return prompt_digest(request.prompt_token_ids, f"{lora}\n{request.cache_salt or ''}")


class PrefillSide:
    """Owned by the engine core's thread; ``release`` and ``renew`` come from the side channel's."""

    def __init__(
        self, settings: ConnectorSettings, block_size: int, keys: HandoffKeys, clock: Callable[[], float]
    ) -> None:
        self._settings, self._block_size, self._keys = settings, block_size, keys
        self.leases = LeaseTable(clock)
        self._holds: list[Hold] = []
        self._notes: list[Note] = []
        self._lock = threading.Lock()

    def release(self, handoff_id: str, reader: str | None) -> bool:
        """One reader needs the blocks no longer, or, without a name, nobody does. Whether a live lease was found."""
        if reader is None:
            return self.leases.release(handoff_id)
        with self._lock:
            self._notes.append(Note(handoff_id, reader))
        return self.leases.is_live(handoff_id)

    def request_finished(
        self, request: "Request", block_ids: list[int], params: dict[str, Any], stats: RowConnectorStats
    ) -> tuple[bool, dict[str, Any] | None]:
        """Whether the blocks stay, and the signed handoff that says where they are."""
        if not params.get("do_remote_decode") or request.status not in _COMPLETE:
            return False, None
        try:
            wish = HandoffRequest.model_validate(params)
        except ValidationError as e:
            logger.warning("no handoff for request %s: %s", request.request_id, e.errors()[0]["msg"])
            stats.refuse(Refusal.MALFORMED)
            return False, None
        # Blocks past the prompt (the leg's own token may open one) are not part of the handoff.
        num_blocks = -(-request.num_prompt_tokens // self._block_size)
        blocks, digest = block_ids[:num_blocks], digest_of(request)
        if digest is None or len(blocks) < num_blocks:
            # vLLM schedules ahead: a prompt can be preempted, its blocks taken, and then end by the step under way.
            return False, None
        config = self._settings.config
        lease_s = min(config.lease_s, wish.lease_s or config.lease_s)
        lease = self.leases.grant(wish.handoff_id, request.request_id, lease_s)
        if lease is None:
            logger.info("no handoff for request %s: released before, or its id was used before", request.request_id)
            return False, None
        stats.count("leases_granted")
        self._holds.append(Hold(request.request_id, wish.handoff_id, wish.num_readers, lease.slot, lease.serial))
        handoff = unsigned(
            wire_version=WIRE_VERSION,
            handoff_id=wish.handoff_id,
            num_readers=wish.num_readers,
            remote_engine_id=self._settings.engine_id,
            remote_request_id=request.request_id[:MAX_REQUEST_ID_CHARS],
            remote_host=config.host,
            remote_port=config.port,
            remote_block_ids=blocks,
            remote_num_tokens=request.num_prompt_tokens,
            prompt_digest=digest,
            tp_size=self._settings.tp_size,
            lease_s=lease_s,
            lease_slot=lease.slot,
            lease_serial=lease.serial,
        )
        return True, self._keys.sign(handoff).model_dump(exclude_none=True)

    def fill(self, meta: StepMetadata, preempted: set[str], stats: RowConnectorStats) -> None:
        """Put this step's orders into ``meta``; hands out leases that are released or have run out."""
        for request_id in preempted:
            # vLLM takes these blocks for others in this very step.
            if (lease := self.leases.revoke(request_id)) is not None:
                meta.revoked.append((lease.slot, lease.serial))
                stats.end_lease(DropReason.REVOKED)
        for lease, reason in self.leases.take_due():
            stats.end_lease(reason)
            if reason is DropReason.EXPIRED:
                logger.warning("blocks of request %s were not read in time; their lease ran out", lease.request_id)
            meta.drops.append(lease.request_id)
        meta.holds, self._holds = self._holds, []
        with self._lock:
            meta.notes, self._notes = self._notes, []

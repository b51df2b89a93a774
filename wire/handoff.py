"""The handoff: what travels as ``kv_transfer_params`` from router to prefill, back, and on to decode.

    router  -> prefill   HandoffRequest   "compute the prompt and keep its blocks for this handoff id"
    prefill -> router    KVHandoff        "the blocks lie here, until then"
    router  -> decode    KVHandoff        unchanged

Clients never send or see either. Field spellings that vLLM has are vLLM's.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

# 1: first version
WIRE_VERSION = 1

HANDOFF_ID_PATTERN = r"^[0-9a-f]{32}$"
HandoffId = Annotated[str, Field(pattern=HANDOFF_ID_PATTERN)]
Port = Annotated[StrictInt, Field(ge=1, le=65535)]


class HandoffRequest(BaseModel):
    """The router's ask on the prefill leg."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    do_remote_decode: Literal[True] = True
    handoff_id: HandoffId
    num_readers: StrictInt = Field(default=1, ge=1, le=1024, description="decode requests that will read (n > 1)")


class KVHandoff(BaseModel):
    """Where one request's KV rows lie on prefill and until when they are promised."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wire_version: StrictInt
    do_remote_prefill: Literal[True] = True
    do_remote_decode: Literal[False] = False
    handoff_id: HandoffId
    num_readers: StrictInt = Field(ge=1, le=1024)
    remote_engine_id: str = Field(min_length=1, max_length=256, description="engine id, new at each start")
    remote_request_id: str = Field(min_length=1, max_length=512)
    remote_host: str = Field(min_length=1, max_length=253)
    remote_port: Port
    remote_block_ids: list[Annotated[StrictInt, Field(ge=0)]] = Field(min_length=1, max_length=1 << 20)
    remote_num_tokens: StrictInt = Field(ge=1, description="tokens whose KV the blocks hold")
    tp_size: StrictInt = Field(ge=1, le=64)
    lease_expires_unix_s: float = Field(gt=0, description="prefill frees the blocks after this wall-clock time")
    remote_prefill_cached_tokens: StrictInt | None = Field(
        default=None, ge=0, description="added by prefill's vLLM: its prefix hits, which decode reports as usage"
    )


class ReleaseRequest(BaseModel):
    """Router to prefill worker: nobody will read this handoff (any more)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    handoff_id: HandoffId


class ReleaseReply(BaseModel):
    """Whether a lease with that id was live when the release arrived; releasing twice is harmless."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    released: bool

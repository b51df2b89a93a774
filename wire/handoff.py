"""The handoff: what travels as ``kv_transfer_params`` from router to prefill, back, and on to decode.

    router  -> prefill   HandoffRequest   "compute the prompt and keep its blocks for this handoff id"
    prefill -> router    KVHandoff        "the blocks lie here, until then", signed
    router  -> decode    KVHandoff        unchanged

Clients never send or see either. Field spellings that vLLM has are vLLM's.
"""

import hashlib
import hmac
import json
from array import array
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, ValidationInfo, field_validator

HANDOFF_ID_PATTERN = r"^[0-9a-f]{32}$"
DIGEST_PATTERN = r"^[0-9a-f]{64}$"
MAX_REQUEST_ID_CHARS = 512
HandoffId = Annotated[str, Field(pattern=HANDOFF_ID_PATTERN)]
Digest = Annotated[str, Field(pattern=DIGEST_PATTERN)]
Port = Annotated[StrictInt, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=3600)]


def _only_a_flag(value: object) -> object:
    """Literals compare by ``==``, so 1 would pass for true."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


Yes = Annotated[Literal[True], BeforeValidator(_only_a_flag)]
No = Annotated[Literal[False], BeforeValidator(_only_a_flag)]
HANDOFF_KEY_ENV = "TANDEM_HANDOFF_KEY"
MAX_HANDOFF_KEYS = 16  # two are in use while one replaces the other
KEY_ID_PATTERN = r"^[0-9a-f]{12}$"
KeyId = Annotated[str, Field(pattern=KEY_ID_PATTERN)]
_KEY_ID_CONTEXT = b"tandem handoff key id"  # no handoff's JSON is this, so no id is a signature
# Not signed: the signature itself, and what prefill's vLLM adds after us.
_UNSIGNED = frozenset({"signature", "remote_prefill_cached_tokens"})


class HandoffRequest(BaseModel):
    """The router's ask on the prefill leg."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    do_remote_decode: Yes = True
    handoff_id: HandoffId
    num_readers: StrictInt = Field(default=1, ge=1, le=1024, description="decode requests that will read (n > 1)")
    lease_s: Seconds | None = Field(default=None, description="shorter than the worker's own, if given")


def handoff_request_json(handoff_id: str, num_readers: int) -> str:
    """``HandoffRequest`` as JSON, for the router, which sends one with each request; the arguments are not checked."""
    # Without what is not set: workers refuse a field that is newer than they are.
    return f'{{"do_remote_decode":true,"handoff_id":"{handoff_id}","num_readers":{num_readers}}}'


class KVHandoff(BaseModel):
    """Where one request's KV rows lie on prefill and how their promise can be checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wire_version: StrictInt
    do_remote_prefill: Yes
    do_remote_decode: No
    handoff_id: HandoffId
    num_readers: StrictInt = Field(ge=1, le=1024)
    remote_engine_id: str = Field(min_length=1, max_length=256, description="engine id, new at each start")
    remote_request_id: str = Field(min_length=1, max_length=MAX_REQUEST_ID_CHARS, description="for logs")
    remote_host: str = Field(min_length=1, max_length=253)
    remote_port: Port
    remote_block_ids: list[Annotated[StrictInt, Field(ge=0)]] = Field(min_length=1, max_length=1 << 20)
    remote_num_tokens: StrictInt = Field(ge=1, description="tokens whose KV the blocks hold: the whole prompt")
    prompt_digest: Digest = Field(description="of those tokens: the blocks are right for no other prompt")
    tp_size: StrictInt = Field(ge=1, le=64)
    lease_s: Seconds = Field(description="prefill keeps the blocks for so long after each renewal")
    lease_slot: StrictInt = Field(ge=0, le=1 << 20, description="word of prefill's fence that tells of the lease's end")
    lease_serial: StrictInt = Field(ge=1, le=(1 << 63) - 1, description="the lease lives while that word is below it")
    signature: Digest
    remote_prefill_cached_tokens: StrictInt | None = Field(
        default=None, ge=0, description="added by prefill's vLLM: its prefix hits, which decode reports as usage"
    )

    @field_validator("remote_prefill_cached_tokens")
    @classmethod
    def _hits_fit_the_prompt(cls, hits: int | None, info: ValidationInfo) -> int | None:
        # Not signed, so bounded here: decode's usage must not report more hits than the prompt has tokens.
        num_tokens = info.data.get("remote_num_tokens")
        if hits is not None and num_tokens is not None and hits > num_tokens:
            raise ValueError(f"{hits} is more than the prompt's {num_tokens} tokens")
        return hits


class ReleaseRequest(BaseModel):
    """To a prefill worker: nobody will read this handoff (any more), or ``reader``, a decode request, will not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    handoff_id: HandoffId
    reader: str | None = Field(default=None, min_length=1, max_length=512)


class ReleaseReply(BaseModel):
    """Whether a lease with that id was live when the release arrived; releasing twice is harmless."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    released: bool


class HandoffKeys:
    """The deployment's handoff keys: the first signs, each of them verifies, so that a key can be replaced.

    Ids tell keys apart where the keys themselves must not be known, as in the router; nothing follows from an id but
    whether it is of a key that one has.

    Args:
        text: the value of ``TANDEM_HANDOFF_KEY``: one key, or several separated by commas, the signing one first.

    Raises:
        ValueError: no key, or more than ``MAX_HANDOFF_KEYS``.
    """

    signs: str
    """Id of the key that signs."""
    verifies: tuple[str, ...]
    """Ids of all keys."""

    def __init__(self, text: str) -> None:
        self._keys = [key.strip().encode() for key in text.split(",") if key.strip()]
        if not self._keys:
            raise ValueError(
                f"{HANDOFF_KEY_ENV} is not set: handoffs are signed with it, all workers of a deployment need the same"
            )
        if len(self._keys) > MAX_HANDOFF_KEYS:
            raise ValueError(f"{HANDOFF_KEY_ENV} holds {len(self._keys)} keys, more than {MAX_HANDOFF_KEYS}")
        self.verifies = tuple(_key_id(key) for key in self._keys)
        self.signs = self.verifies[0]

    def sign(self, handoff: KVHandoff) -> KVHandoff:
        """``handoff`` with its signature; the one it carries is ignored."""
        return handoff.model_copy(update={"signature": _mac(self._keys[0], handoff)})

    def verify(self, handoff: KVHandoff) -> bool:
        """Whether one of the keys signed exactly this handoff."""
        return any(hmac.compare_digest(_mac(key, handoff), handoff.signature) for key in self._keys)


def unsigned(**fields: object) -> KVHandoff:
    """A handoff that still has to be signed."""
    return KVHandoff.model_validate(
        {"do_remote_prefill": True, "do_remote_decode": False, "signature": "0" * 64, **fields}
    )


def prompt_digest(token_ids: Sequence[int], salt: str = "") -> str:
    """Names a prompt: BLAKE2b of its token ids and of what else its KV depends on (LoRA adapter, cache salt)."""
    # The count keeps apart what ends in a token from what ends in the same bytes of salt.
    digest = hashlib.blake2b(len(token_ids).to_bytes(8, "little"), digest_size=32)
    digest.update(array("q", token_ids).tobytes())
    digest.update(salt.encode(errors="surrogatepass"))
    return digest.hexdigest()


def _key_id(key: bytes) -> str:
    return hmac.new(key, _KEY_ID_CONTEXT, "sha256").hexdigest()[:12]


def _mac(key: bytes, handoff: KVHandoff) -> str:
    fields = handoff.model_dump(mode="json", exclude=set(_UNSIGNED))
    return hmac.new(key, json.dumps(fields, sort_keys=True, separators=(",", ":")).encode(), "sha256").hexdigest()

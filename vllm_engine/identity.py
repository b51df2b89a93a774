"""Who this worker process is, known before vLLM is imported: names, secrets, and what a peer must have in common.

The router is asked with it whether the worker can pair with anybody, before minutes are spent on loading a model.
"""

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from kv_transfer.fingerprint import fingerprint
from vllm_engine.args import last_value
from wire.handoff import HANDOFF_KEY_ENV, HandoffKeys
from wire.worker import Fingerprint, WorkerCheck
from wire.worker_config import CLUSTER_TOKEN_ENV, WorkerConfig, is_loopback

logger = logging.getLogger("vllm.tandem.worker")

_TIMEOUT_S = 5.0
# vLLM's own settings that change what the KV of a prompt is, or which prompt a chat becomes.
SHARED_FLAGS = ("--kv-cache-dtype", "--attention-config", "--hf-overrides", "--quantization", "--chat-template")


class WrongIdentity(Exception):
    """No handoff key, no cluster token where others can reach the worker, or a checkpoint that can't be read."""


class RegistrationRefused(Exception):
    """The router says that this worker can pair with no other, or does not know it; the message names what differs."""


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """One life of a worker process. ``generation`` and ``engine_id`` are new at each start."""

    generation: str
    engine_id: str
    fingerprint: Fingerprint
    keys: HandoffKeys = field(repr=False)
    token: str = field(repr=False)

    @classmethod
    def create(cls, config: WorkerConfig, environ: Mapping[str, str]) -> "WorkerIdentity":
        """Read the checkpoint's files and the secrets.

        Raises:
            WrongIdentity: see there.
        """
        generation = uuid.uuid4().hex[:12]
        engine = {
            "block_size": config.block_size,
            "dtype": config.dtype,
            "max_model_len": config.max_model_len,
            **{flag: last_value(flag, config.extra_vllm_args) for flag in SHARED_FLAGS},
        }
        token = environ.get(CLUSTER_TOKEN_ENV, "")
        try:
            _check_token(config, token)
            keys = HandoffKeys(environ.get(HANDOFF_KEY_ENV, ""))
            values = fingerprint(Path(config.model), engine)
        except (OSError, ValueError) as e:
            raise WrongIdentity(str(e)) from e
        return cls(
            generation=generation,
            engine_id=f"{config.worker_id}-{generation}",
            fingerprint=values,
            keys=keys,
            token=token,
        )

    def headers(self) -> dict[str, str]:
        """Of a JSON request to the router."""
        headers = {"content-type": "application/json"}
        return headers | {"authorization": f"Bearer {self.token}"} if self.token else headers


def _check_token(config: WorkerConfig, token: str) -> None:
    """Raises ValueError: without a token, whoever can reach the worker could use its engine and read its KV."""
    for host in (config.host, config.kv_transfer.host):
        if not token and not is_loopback(host):
            raise ValueError(f"{CLUSTER_TOKEN_ENV} is not set, and the worker listens at {host}, not on loopback")


def check_with_router(config: WorkerConfig, identity: WorkerIdentity) -> None:
    """Ask the router whether it would register this worker; one that is away is asked again by the first heartbeat.

    Raises:
        RegistrationRefused: it would not.
    """
    if config.router_url is None:
        return
    check = WorkerCheck(
        worker_id=config.worker_id,
        role=config.role,
        model=config.served_model_name,
        fingerprint=identity.fingerprint,
        handoff_key=identity.keys.signs,
        handoff_keys=identity.keys.verifies,
    )
    try:
        reply = httpx.post(
            f"{config.router_url}/internal/workers/check",
            content=check.model_dump_json(),
            headers=identity.headers(),
            timeout=_TIMEOUT_S,
        )
    except httpx.HTTPError as e:
        logger.warning("router at %s can't be asked yet: %s", config.router_url, type(e).__name__)
        return
    raise_if_refused(reply)


def raise_if_refused(reply: httpx.Response) -> None:
    """Raises RegistrationRefused with the router's reason when ``reply`` says that trying again can't help."""
    if reply.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        fault = "is another than the router's" if "authorization" in reply.request.headers else "is not set"
        raise RegistrationRefused(f"the router answered with {reply.status_code}: {CLUSTER_TOKEN_ENV} {fault}")
    if reply.status_code not in (httpx.codes.CONFLICT, httpx.codes.BAD_REQUEST, httpx.codes.NOT_FOUND):
        return
    try:
        error = reply.json()["error"]
        message, code, kind = str(error["message"]), error.get("code"), error.get("type")
    except (ValueError, LookupError, TypeError, AttributeError):  # not the router's own words: a proxy answered
        message, code, kind = f"the router answered with {reply.status_code}", None, None
    if reply.status_code == httpx.codes.NOT_FOUND and kind == "not_found_error":
        raise RegistrationRefused("router_url leads to the port of the router's clients; workers need its metrics_port")
    if reply.status_code == httpx.codes.CONFLICT or code == "wire_version_mismatch":
        raise RegistrationRefused(message)

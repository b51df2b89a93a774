"""Who may call: clients by API key, workers by the cluster token. All comparisons take constant time."""

import logging
import os
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from hmac import compare_digest

from pydantic import SecretStr

from router.api_keys import ApiKey, name_keys, read_key_file
from router.config import ConfigError, RouterConfig
from router.key_usage import KeyUsage
from wire.errors import Unauthorized

API_KEY_HEADER = "x-api-key"

logger = logging.getLogger(__name__)


class ClientAuth:
    """Checks a client's API key; with no keys configured everyone may call.

    Keys are found by a digest under a secret of this process. So a check costs the same for one key and for a thousand,
    and its time tells nothing of how close a guess came.

    Args:
        usage: told of every name that may be counted.
    """

    def __init__(self, keys: Sequence[ApiKey], usage: KeyUsage) -> None:
        self._pepper, self._usage = os.urandom(32), usage
        self._by_digest: dict[bytes, ApiKey] = {}
        self.replace(keys)

    def replace(self, keys: Sequence[ApiKey]) -> None:
        """These are the keys from now on; requests that were let in go on."""
        self._by_digest = {self._digest(key.secret): key for key in keys}
        self._usage.expect({key.name for key in keys})

    def check(self, headers: Mapping[str, str]) -> str | None:
        """The name of the client's key; None where no keys are configured.

        The key is a bearer token (OpenAI's clients) or in ``x-api-key`` (Anthropic's). Raises: Unauthorized.
        """
        if not self._by_digest:
            return None
        for given in (bearer(headers), headers.get(API_KEY_HEADER, "").encode()):
            key = self._by_digest.get(self._digest(given))
            if key is not None and compare_digest(given, key.secret):
                return key.name
        raise Unauthorized("The API key is missing or wrong.", code="invalid_api_key")

    def _digest(self, secret: bytes) -> bytes:
        return blake2b(secret, key=self._pepper).digest()


def configured_keys(config: RouterConfig) -> tuple[ApiKey, ...]:
    """All keys of ``api_keys``, then of ``api_keys_file``.

    Raises:
        ConfigError: the file can't be used, or a key is there twice.
    """
    texts = [key.get_secret_value() for key in config.api_keys]
    try:
        if config.api_keys_file is None:
            return name_keys(texts)
        return name_keys(texts + read_key_file(config.api_keys_file))
    except ValueError as error:
        raise ConfigError(f"{'api_keys' if config.api_keys_file is None else 'api_keys_file'}: {error}") from None


def read_keys_again(auth: ClientAuth, config: RouterConfig) -> None:
    """Take the keys of a file that has changed; one that can't be used is logged and changes nothing."""
    try:
        keys = configured_keys(config)
    except ConfigError as error:
        logger.error("%s; the keys stay as they were", error)
        return
    auth.replace(keys)
    logger.info("%d API keys are in use", len(keys))


class ClusterAuth:
    """Checks the cluster token on control routes; without a token they are open to this machine alone."""

    def __init__(self, token: SecretStr | None, *, is_loopback: bool) -> None:
        self._token = None if token is None else token.get_secret_value().encode()
        self._is_loopback = is_loopback

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises: Unauthorized."""
        if self._token is None:
            if not self._is_loopback:
                raise Unauthorized("Control routes need a cluster token when the router is reachable from outside.")
            return
        if not compare_digest(bearer(headers), self._token):
            raise Unauthorized("The cluster token is missing or wrong.", code="invalid_cluster_token")


def bearer(headers: Mapping[str, str]) -> bytes:
    """The token of an ``Authorization: Bearer`` header; empty without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip().encode() if scheme.lower() == "bearer" else b""

"""Who may call: clients by API key, workers by the cluster token. All comparisons take constant time."""

from collections.abc import Mapping, Sequence
from hmac import compare_digest

from pydantic import SecretStr

from wire.errors import Unauthorized

API_KEY_HEADER = "x-api-key"


class ClientAuth:
    """Checks a client's API key; with no keys configured everyone may call."""

    def __init__(self, api_keys: Sequence[SecretStr]) -> None:
        self._keys = [key.get_secret_value().encode() for key in api_keys]

    def check(self, headers: Mapping[str, str]) -> None:
        """The key is a bearer token (OpenAI's clients) or in ``x-api-key`` (Anthropic's). Raises: Unauthorized."""
        if not self._keys:
            return
        given = (bearer(headers), headers.get(API_KEY_HEADER, "").encode())
        # Every key is compared, so that time doesn't tell which one came close.
        if not any([compare_digest(one, key) for one in given for key in self._keys]):
            raise Unauthorized("The API key is missing or wrong.", code="invalid_api_key")


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

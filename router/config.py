"""The router's typed configuration and where it comes from.

A field is taken from the first of: command line, environment (``TANDEM_ROUTER_<FIELD>``), file, default.
An unknown key or a wrong value stops the start with the key's name; values are never printed, as some are secrets.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError

from wire.worker_config import CLUSTER_TOKEN_ENV, is_loopback

ENV_PREFIX = "TANDEM_ROUTER_"


class ConfigError(Exception):
    """The configuration can't be used; the message names each bad key."""


def _split_commas(value: Any) -> Any:
    """Environment and command line spell a list as ``a,b``; files have real lists."""
    if isinstance(value, str):
        return tuple(part for part in (piece.strip() for piece in value.split(",")) if part)
    return value


def _check_worker_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be http://host:port or https://host:port")
    if parts.query or parts.fragment or parts.username:
        raise ValueError("must be a bare base URL, without credentials, query or fragment")
    return url.rstrip("/")


WorkerUrl = Annotated[str, AfterValidator(_check_worker_url)]
WorkerUrls = Annotated[tuple[WorkerUrl, ...], BeforeValidator(_split_commas)]
Secrets = Annotated[tuple[SecretStr, ...], BeforeValidator(_split_commas)]
PolicyName = Literal["round_robin", "least_loaded"]


class RouterConfig(BaseModel):
    """Everything that one router process needs to start."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8000, ge=1, le=65535)
    prefill: WorkerUrls = Field(default=(), description="static prefill workers' base URLs")
    decode: WorkerUrls = Field(default=(), description="static decode workers' base URLs")
    policy: PolicyName = Field(default="least_loaded", description="how a worker is picked among the usable ones")
    heartbeat_ttl_s: float = Field(default=15.0, gt=0, le=3600, description="a worker silent for longer is forgotten")
    health_interval_s: float = Field(default=2.0, gt=0, le=3600, description="between probes of a static worker")
    connect_timeout_s: float = Field(default=2.0, gt=0, le=600)
    prefill_timeout_s: float = Field(default=600.0, gt=0, le=86400, description="whole prefill leg")
    decode_idle_timeout_s: float = Field(default=600.0, gt=0, le=86400, description="between two pieces from decode")
    release_timeout_s: float = Field(default=5.0, gt=0, le=600, description="one attempt to release a handoff")
    max_body_bytes: int = Field(default=64 << 20, ge=1, description="longer request bodies are refused with 413")
    shutdown_timeout_s: float = Field(default=30.0, ge=0, le=3600, description="SIGTERM: seconds to finish streams")
    cluster_token: SecretStr | None = Field(default=None, min_length=1, description="shared with the workers")
    api_keys: Secrets = Field(default=(), description="client keys; none: clients need no key")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the router."""
        return is_loopback(self.host)


def load_config(
    *,
    file: Path | None = None,
    environ: Mapping[str, str],
    overrides: Mapping[str, Any] | None = None,
    key_prefix: str = "",
) -> RouterConfig:
    """Merge file, environment and overrides into one checked configuration.

    Args:
        file: YAML or JSON object of fields, or None.
        environ: the process environment; ``TANDEM_CLUSTER_TOKEN`` sets ``cluster_token`` too.
        overrides: from the command line; fields that are None count as not given.
        key_prefix: where the file's keys were written, if elsewhere; messages put it before them.

    Raises:
        ConfigError: unreadable file, unknown key, or wrong value; names the key.
    """
    of_file: dict[str, Any] = {} if file is None else _read_file(file)
    others = _from_environ(environ)
    others |= {name: value for name, value in (overrides or {}).items() if value is not None}
    try:
        return RouterConfig.model_validate(of_file | others)
    except ValidationError as error:
        raise ConfigError(_describe(error, {key: key_prefix for key in of_file if key not in others})) from None


def _read_file(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    except yaml.YAMLError:
        # The parser's own message quotes the lines around the fault, which may hold keys.
        raise ConfigError(f"{file}: not valid YAML") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{file}: must hold one object of named fields")
    return content


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if environ.get(CLUSTER_TOKEN_ENV):
        values["cluster_token"] = environ[CLUSTER_TOKEN_ENV]
    for name, value in environ.items():
        if not name.startswith(ENV_PREFIX):
            continue
        field = name.removeprefix(ENV_PREFIX).lower()
        if field not in RouterConfig.model_fields:
            raise ConfigError(f"{name}: no such setting")
        values[field] = value
    return values


def _describe(error: ValidationError, prefixes: Mapping[Any, str]) -> str:
    return "; ".join(
        f"{prefixes.get(fault['loc'][0], '')}{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
        for fault in error.errors(include_input=False)
    )

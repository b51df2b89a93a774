"""The router's typed configuration and where it comes from.

A field is taken from the first of: command line, environment (``TANDEM_ROUTER_<FIELD>``), file, default.
An unknown key, a wrong value or a senseless combination stops the start with the key's name; values are never printed,
as some are secrets.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from router.api_keys import name_keys
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
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("must be http://host:port or https://host:port")
    if parts.query or parts.fragment or parts.username:
        raise ValueError("must be a bare base URL, without credentials, query or fragment")
    return url.rstrip("/")


def _with_traces_path(url: str) -> str:
    """OTLP's own path where a collector is named by its address alone."""
    return url if urlsplit(url).path else f"{url}/v1/traces"


def _origin(url: str) -> tuple[str, str | None, int | None, str]:
    """The same for two spellings of one base URL."""
    parts = urlsplit(url)
    port = parts.port if parts.port is not None else {"http": 80, "https": 443}[parts.scheme]
    return parts.scheme, parts.hostname, port, parts.path


def _check_keys(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    name_keys(key.get_secret_value() for key in keys)
    return keys


WorkerUrl = Annotated[str, AfterValidator(_check_worker_url)]
OtlpUrl = Annotated[WorkerUrl, AfterValidator(_with_traces_path)]
WorkerUrls = Annotated[tuple[WorkerUrl, ...], BeforeValidator(_split_commas)]
Secrets = Annotated[tuple[SecretStr, ...], BeforeValidator(_split_commas), AfterValidator(_check_keys)]
PolicyName = Literal["round_robin", "least_loaded", "power_of_two", "queue_depth", "prefix_affinity"]


class RouterConfig(BaseModel):
    """Everything that one router process needs to start.

    A field that makes sense only beside another one comes after it: its validator looks at what is there already.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8000, ge=1, le=65535, description="port of the API")
    metrics_port: int | None = Field(
        default=None, ge=1, le=65535, description="port of /metrics and of the control routes; none: that of the API"
    )
    processes: int = Field(
        default=1, ge=1, le=256, description="that share the API's port; more than 1 need a metrics_port"
    )
    prefill: WorkerUrls = Field(default=(), description="static prefill workers' base URLs")
    decode: WorkerUrls = Field(default=(), description="static decode workers' base URLs")
    policy: PolicyName = Field(default="least_loaded", description="how a worker is picked among the usable ones")
    prefill_policy: PolicyName | None = Field(default=None, description="the same for prefill alone; none: policy")
    decode_policy: PolicyName | None = Field(default=None, description="the same for decode alone; none: policy")
    no_prefill: Literal["strict", "decode_only"] = Field(
        default="strict", description="without prefill: an error, or decode computes prompts itself"
    )
    prefill_tokens_per_worker: int = Field(
        default=1 << 20, ge=0, description="prompt tokens in flight for each usable worker, others wait; 0: no limit"
    )
    decode_tokens_per_worker: int = Field(
        default=8 << 20, ge=0, description="the same of decode, prompt and output together; 0: no limit"
    )
    max_queued_tokens: int = Field(
        default=8 << 20, ge=0, description="that may wait for one role, more get a 429; 0: nothing waits"
    )
    queue_timeout_s: float = Field(default=60.0, ge=0, le=86400, description="longest wait, then a 504; 0: no limit")
    ping_interval_s: float = Field(
        default=15.0, ge=0, le=3600, description="between comments on a stream that has not begun; 0: none"
    )
    request_timeout_s: float = Field(default=0.0, ge=0, le=86400, description="a whole request; 0: no limit")
    retry_ratio: float = Field(default=0.2, ge=0, le=1, description="second attempts for each request, at most")
    breaker_failures: int = Field(default=5, ge=0, description="in a row, then a worker is left alone; 0: never")
    breaker_open_s: float = Field(default=1.0, gt=0, le=3600, description="how long at first; doubled each time")
    breaker_max_open_s: float = Field(default=60.0, gt=0, le=3600, description="how long at most")
    heartbeat_ttl_s: float = Field(default=15.0, gt=0, le=3600, description="a worker silent for longer is forgotten")
    health_interval_s: float = Field(default=2.0, gt=0, le=3600, description="between probes of a static worker")
    connect_timeout_s: float = Field(default=2.0, gt=0, le=600, description="to connect to a worker, TLS included")
    prefill_timeout_s: float = Field(default=600.0, gt=0, le=86400, description="whole prefill leg")
    decode_idle_timeout_s: float = Field(default=600.0, gt=0, le=86400, description="between two pieces from decode")
    release_timeout_s: float = Field(default=5.0, gt=0, le=600, description="one attempt to release a handoff")
    max_body_bytes: int = Field(default=64 << 20, ge=1, description="longer request bodies are refused with 413")
    client_header_timeout_s: float = Field(
        default=30.0, gt=0, le=3600, description="a client that has not sent its request's head by then is cut"
    )
    client_body_timeout_s: float = Field(
        default=300.0, gt=0, le=86400, description="a client that has not sent its whole body by then is cut"
    )
    client_keep_alive_s: float = Field(
        default=75.0, gt=0, le=86400, description="an unused connection of a client is closed after this"
    )
    shutdown_timeout_s: float = Field(default=30.0, ge=0, le=3600, description="SIGTERM: time to finish streams")
    tls_cert_file: Path | None = Field(default=None, description="PEM certificate chain: serve https on both ports")
    tls_key_file: Path | None = Field(default=None, validate_default=True, description="PEM key of that certificate")
    worker_ca_file: Path | None = Field(
        default=None, description="PEM certificates that https workers are trusted by; none: the system's"
    )
    cluster_token: SecretStr | None = Field(default=None, min_length=1, description="shared with the workers")
    api_keys: Secrets = Field(default=(), description="client keys, KEY or NAME:KEY; none: clients need no key")
    api_keys_file: Path | None = Field(default=None, description="more client keys, one a line; read again on SIGHUP")
    max_in_flight_per_key: int | None = Field(
        default=None, ge=1, description="more requests at once of one key's name are answered with 429; none: no limit"
    )
    otlp_traces_endpoint: OtlpUrl | None = Field(
        default=None, description="URL of a collector that takes traces by OTLP over HTTP; none: no traces"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="least level logged")

    @field_validator("metrics_port")
    @classmethod
    def _is_another_port(cls, metrics_port: int | None, info: ValidationInfo) -> int | None:
        if metrics_port is not None and metrics_port == info.data.get("port"):
            raise ValueError("is the same as port; leave it out to serve all on one port")
        return metrics_port

    @field_validator("processes")
    @classmethod
    def _has_metrics_port(cls, processes: int, info: ValidationInfo) -> int:
        # Metrics and heartbeats are of all processes together, so they can't come in where any one of them answers.
        if processes > 1 and info.data.get("metrics_port", True) is None:
            raise ValueError("more than 1 need a metrics_port")
        return processes

    @field_validator("prefill", "decode")
    @classmethod
    def _is_a_worker_once(cls, urls: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        seen = [_origin(url) for url in urls]
        if len(set(seen)) < len(seen):
            raise ValueError("names a worker twice")
        if not set(seen).isdisjoint(_origin(url) for url in info.data.get("prefill", ())):
            raise ValueError("names a worker that prefill names too; one worker has one role")
        return urls

    @field_validator("breaker_max_open_s")
    @classmethod
    def _is_no_less(cls, max_open_s: float, info: ValidationInfo) -> float:
        if max_open_s < info.data.get("breaker_open_s", 0.0):
            raise ValueError("is less than breaker_open_s")
        return max_open_s

    @field_validator("tls_key_file")
    @classmethod
    def _has_certificate(cls, key_file: Path | None, info: ValidationInfo) -> Path | None:
        if key_file is None and info.data.get("tls_cert_file") is not None:
            raise ValueError("is needed with tls_cert_file")
        if key_file is not None and info.data.get("tls_cert_file") is None:
            raise ValueError("makes no sense without tls_cert_file")
        return key_file

    @field_validator("max_in_flight_per_key")
    @classmethod
    def _has_keys(cls, limit: int | None, info: ValidationInfo) -> int | None:
        has_keys = bool(info.data.get("api_keys", True)) or info.data.get("api_keys_file", True) is not None
        if limit is not None and not has_keys:
            raise ValueError("makes no sense without api_keys or api_keys_file")
        return limit

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
        f"{prefixes.get(fault['loc'][0], '')}{'.'.join(str(part) for part in fault['loc'])}: "
        f"{fault['msg'].removeprefix('Value error, ')}"
        for fault in error.errors(include_input=False)
    )

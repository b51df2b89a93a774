"""The router's command line: a flag for each setting but the secrets, with its default and its variable."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from router.config import ENV_PREFIX, RouterConfig
from wire.worker_config import CLUSTER_TOKEN_ENV

DESCRIPTION = "tandem's router: the front door to prefill and decode workers."
SECRETS = ("cluster_token", "api_keys")
EPILOG = (
    "A setting is taken from the first of: flag, environment, file, default. Times are in seconds. Secrets have no"
    f" flag, since a command line shows in the process list: {CLUSTER_TOKEN_ENV} (or {ENV_PREFIX}CLUSTER_TOKEN) is"
    f" shared with the workers, {ENV_PREFIX}API_KEYS are the clients' keys, KEY or NAME:KEY, with commas between them."
)
METAVARS = {"prefill": "URL,URL", "decode": "URL,URL", "host": "ADDRESS", "otlp_traces_endpoint": "URL"}


def parse_arguments(argv: Sequence[str]) -> dict[str, Any]:
    """``config``, ``key_prefix`` and each setting; those that are not given are None, so that others can speak.

    A setting's flag is its name, in which a unit of seconds may be left out: ``--health-interval`` and
    ``--health-interval-s`` are the same.
    """
    parser = argparse.ArgumentParser(prog="router", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML or JSON object of settings, by their names")
    parser.add_argument(
        "--key-prefix", default="", metavar="TEXT", help="put before the file's keys in messages; the launcher sets it"
    )
    for name, field in RouterConfig.model_fields.items():
        if name not in SECRETS:
            parser.add_argument(*_flags(name), dest=name, metavar=_metavar(name, field), help=_help(name, field))
    return vars(parser.parse_args(argv))


def _flags(name: str) -> list[str]:
    full = f"--{name.replace('_', '-')}"
    return [full.removesuffix("-s"), full] if full.endswith("-s") else [full]


def _metavar(name: str, field: FieldInfo) -> str:
    if name in METAVARS:
        return METAVARS[name]
    if name.endswith("_s"):
        return "S"
    if name.endswith("_file"):
        return "FILE"
    if field.annotation is bool:
        return "true|false"
    choices = _choices(field.annotation)
    return "|".join(choices) if choices else "N"


def _choices(annotation: Any) -> list[str]:
    """The words that may be given; none where it isn't words."""
    arguments = getattr(annotation, "__args__", ())
    return [word for one in arguments for word in ([one] if isinstance(one, str) else _choices(one))]


def _help(name: str, field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    assert default is not PydanticUndefined
    shown = "none" if default is None or default == () else f"{default:g}" if isinstance(default, float) else default
    return f"{field.description} (default: {shown}; {ENV_PREFIX}{name.upper()})".replace("%", "%%")

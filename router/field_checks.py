"""What each field of a body may be, as a table: only the fields that a body has are looked at. Meanings are vLLM's."""

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, NamedTuple

from router.endpoints import Endpoint
from router.json_members import Member
from wire.errors import BadRequest

MAX_CHOICES = 128
MAX_INTERVAL = 1 << 20  # tokens between two chunks; more than any context
MAX_PRIORITY = (1 << 63) - 1
TRANSFER_KEYS = ("kv_transfer_params", "ec_transfer_params")


class Check(NamedTuple):
    """What a value must be."""

    is_right: Callable[[Any], bool]
    wanted: str
    """How it is told to the client: "`name` must be <wanted>"."""
    takes_null: bool = True
    """Null means "not given", as in vLLM's optional fields."""


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(is_int(item) and item >= 0 for item in value)


def _is_number(value: Any) -> bool:
    return is_int(value) or (isinstance(value, float) and isfinite(value))


def _is_stop(value: Any) -> bool:
    strings = value if isinstance(value, list) else [value]
    return all(isinstance(item, str) and item != "" for item in strings)


def _is_int_list(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_int, value))


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_model(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _int_from(least: int, most: int | None = None) -> Callable[[Any], bool]:
    return lambda value: is_int(value) and least <= value and (most is None or value <= most)


def _at_least(least: int, *, takes_null: bool = True) -> Check:
    return Check(_int_from(least), f"an integer of at least {least}", takes_null)


_FLAG = Check(_is_flag, "a boolean")
_OBJECT = Check(_is_object, "an object")
_INTS = Check(_is_int_list, "a list of integers")
_LOGPROBS = Check(_int_from(-1), "an integer of at least 0, or -1")
_N = Check(_int_from(1, MAX_CHOICES), f"an integer from 1 to {MAX_CHOICES}")

_EVERYWHERE = {
    "model": Check(_is_model, "a non-empty string"),
    "stream": _FLAG,
    "temperature": Check(lambda v: _is_number(v) and 0 <= v <= 2, "a number from 0 to 2"),
    "top_p": Check(lambda v: _is_number(v) and 0 < v <= 1, "a number above 0, at most 1"),
}
_SAMPLED = _EVERYWHERE | {
    "ignore_eos": _FLAG,
    "include_stop_str_in_output": _FLAG,
    "stop": Check(_is_stop, "a non-empty string or a list of non-empty strings"),
    "stop_token_ids": _INTS,
    "structured_outputs": _OBJECT,
    "priority": Check(_int_from(-MAX_PRIORITY - 1, MAX_PRIORITY), "an integer of 64 bits", takes_null=False),
}
_SHARED = _SAMPLED | {
    "echo": _FLAG,
    "use_beam_search": _FLAG,
    "return_token_ids": _FLAG,
    "stream_options": _OBJECT,
    "stream_interval": Check(_int_from(1, MAX_INTERVAL), f"an integer from 1 to {MAX_INTERVAL}"),
    "max_completion_tokens": _at_least(1),
    "min_tokens": _at_least(0, takes_null=False),
    "prompt_logprobs": _LOGPROBS,
    "logprob_token_ids": _INTS,
    "response_format": _OBJECT,
}
_PASS_THROUGH = {"model": _EVERYWHERE["model"]}
CHECKS: dict[Endpoint, Mapping[str, Check]] = {
    Endpoint.CHAT: _SHARED | {"max_tokens": _at_least(1), "n": _N, "logprobs": _FLAG, "top_logprobs": _LOGPROBS},
    # With echo, completions may ask for no token at all; what the least is without it, ``validate`` says.
    Endpoint.COMPLETIONS: _SHARED
    | {"max_tokens": _at_least(0), "n": _N._replace(takes_null=False), "logprobs": _LOGPROBS},
    Endpoint.RESPONSES: _SAMPLED
    | {
        "max_output_tokens": _at_least(1),
        "include": Check(_is_strings, "a list of strings"),
        "top_logprobs": _LOGPROBS,
        "enable_response_messages": _FLAG,
        "store": _FLAG,
        "background": _FLAG,
        "text": _OBJECT,
        "tools": Check(_is_objects, "a list of objects"),
    },
    Endpoint.MESSAGES: _EVERYWHERE
    | {
        "model": _EVERYWHERE["model"]._replace(takes_null=False),
        "max_tokens": _at_least(1, takes_null=False),
        "stop_sequences": Check(_is_strings, "a list of strings"),
        "thinking": _OBJECT,
        "output_config": _OBJECT,
    },
    Endpoint.COUNT_TOKENS: _PASS_THROUGH,
    Endpoint.EMBEDDINGS: _PASS_THROUGH,
    Endpoint.TOKENIZE: _PASS_THROUGH,
    Endpoint.DETOKENIZE: _PASS_THROUGH,
}


def check_fields(endpoint: Endpoint, members: Iterable[Member]) -> dict[str, Any]:
    """Check every field alone; returns them by name.

    Raises:
        BadRequest: ``param`` names the field. No message quotes a value: it may be part of a prompt.
    """
    checks = CHECKS[endpoint]
    fields = {}
    for key, value, *_ in members:
        check = checks.get(key)
        if check is not None and not (value is None and check.takes_null) and not check.is_right(value):
            raise BadRequest(f"`{key}` must be {check.wanted}.", param=key)
        fields[key] = value
    _refuse_transfer_params(fields)
    return fields


def _refuse_transfer_params(fields: Mapping[str, Any]) -> None:
    for key in TRANSFER_KEYS:
        if key in fields:
            raise BadRequest(f"`{key}` is internal to the service and can't be set by a client.", param=key)
    extra = fields.get("vllm_xargs")
    if isinstance(extra, dict):
        for key in TRANSFER_KEYS:
            if key in extra:
                raise BadRequest(f"`vllm_xargs.{key}` is internal to the service.", param="vllm_xargs")

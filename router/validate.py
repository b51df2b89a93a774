"""What the router itself must check in a body, since the prefill leg no longer carries it. Meanings are vLLM's.

Everything else (message contents, tools, templates, vocabulary) is left to vLLM, which sees it on the prefill leg.
No message quotes a value: it may be part of a prompt.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from router.context import Endpoint, Plan, Route
from router.schema_bounds import check_schema_bounds
from wire.errors import BadRequest

MAX_CHOICES = 128
MAX_INTERVAL = 1 << 20  # tokens between two chunks; more than any context
TRANSFER_KEYS = ("kv_transfer_params", "ec_transfer_params")
COMPLETIONS_DEFAULT_MAX_TOKENS = 16
# vLLM treats a lower temperature as greedy, where several choices would be the same.
GREEDY_BELOW = 1e-5
MEDIA_KEYS = frozenset(
    {
        *("image_url", "image_pil", "image_embeds", "input_image", "image"),
        *("audio_url", "input_audio", "audio_embeds", "audio"),
        *("video_url", "input_video", "video_embeds", "video"),
        *("file", "input_file"),
    }
)

Fields = Mapping[str, Any]


def plan_request(endpoint: Endpoint, fields: Fields) -> Plan:
    """Check the decoded top-level fields and decide the route.

    Raises:
        BadRequest: ``param`` names the field.
    """
    _refuse_transfer_params(fields)
    _check_output_shape(fields)
    _check_limits(endpoint, fields)
    _check_sampling(fields)
    _check_logprobs(endpoint, fields)
    _check_optional(fields, "structured_outputs", lambda v: isinstance(v, dict), "an object")
    _check_optional(fields, "response_format", lambda v: isinstance(v, dict), "an object")
    check_schema_bounds(fields)
    if endpoint is Endpoint.CHAT:
        _check_messages(fields.get("messages"))
    else:
        _check_prompt(fields)
    route, reason = _choose_route(endpoint, fields)
    return Plan(
        model=fields.get("model"),
        is_stream=bool(fields.get("stream")),
        num_choices=fields.get("n") or 1,
        max_tokens=_max_tokens(endpoint, fields),
        route=route,
        reason=reason,
    )


def _choose_route(endpoint: Endpoint, fields: Fields) -> tuple[Route, str]:
    if fields.get("use_beam_search"):
        return Route.DECODE_ONLY, "beam_search"
    if _wants_prompt_logprobs(endpoint, fields):
        return Route.DECODE_ONLY, "prompt_logprobs"
    if _has_several_prompts(fields.get("prompt")):
        return Route.DECODE_ONLY, "multi_prompt"
    if (
        endpoint is Endpoint.CHAT
        and fields.get("truncate_prompt_tokens") == -1
        and _max_tokens(endpoint, fields) is None
    ):
        # vLLM then keeps one prompt token more than with a limit, so the two legs would disagree on the prompt.
        return Route.DECODE_ONLY, "unbounded_truncation"
    return Route.PREFILL_DECODE, "handoff"


def _wants_prompt_logprobs(endpoint: Endpoint, fields: Fields) -> bool:
    if fields.get("prompt_logprobs") is not None:
        return True
    # With echo vLLM takes prompt_logprobs from logprobs (completions) or from top_logprobs, 0 if absent (chat).
    return bool(fields.get("echo")) and (endpoint is Endpoint.CHAT or fields.get("logprobs") is not None)


def _has_several_prompts(prompt: Any) -> bool:
    return isinstance(prompt, list) and len(prompt) > 1 and not _is_int(prompt[0])


def _refuse_transfer_params(fields: Fields) -> None:
    for key in TRANSFER_KEYS:
        if key in fields:
            raise BadRequest(f"`{key}` is internal to the service and can't be set by a client.", param=key)
    extra = fields.get("vllm_xargs")
    if isinstance(extra, dict):
        for key in TRANSFER_KEYS:
            if key in extra:
                raise BadRequest(f"`vllm_xargs.{key}` is internal to the service.", param="vllm_xargs")


def _check_output_shape(fields: Fields) -> None:
    _check_optional(fields, "model", lambda v: isinstance(v, str) and v != "", "a non-empty string")
    for name in ("stream", "echo", "ignore_eos", "use_beam_search", "return_token_ids", "include_stop_str_in_output"):
        _check_optional(fields, name, lambda v: isinstance(v, bool), "a boolean")
    _check_optional(fields, "stream_options", lambda v: isinstance(v, dict), "an object")
    if fields.get("stream_options") and not fields.get("stream"):
        raise BadRequest("`stream_options` can only be set when `stream` is true.", param="stream_options")
    for name in ("include_usage", "continuous_usage_stats"):
        if not isinstance((fields.get("stream_options") or {}).get(name), bool | None):
            raise BadRequest(f"`stream_options.{name}` must be a boolean.", param=f"stream_options.{name}")
    _check_optional(
        fields,
        "stream_interval",
        lambda v: _is_int(v) and 1 <= v <= MAX_INTERVAL,
        f"an integer from 1 to {MAX_INTERVAL}",
    )
    _check_optional(fields, "stop", _is_stop, "a non-empty string or a list of non-empty strings")
    _check_optional(fields, "stop_token_ids", _is_int_list, "a list of integers")


def _check_limits(endpoint: Endpoint, fields: Fields) -> None:
    is_echo_only = endpoint is Endpoint.COMPLETIONS and bool(fields.get("echo"))
    least = 0 if is_echo_only else 1
    _check_optional(fields, "max_tokens", lambda v: _is_int(v) and v >= least, f"an integer of at least {least}")
    _check_optional(fields, "max_completion_tokens", lambda v: _is_int(v) and v >= 1, "an integer of at least 1")
    _check_present(fields, "min_tokens", lambda v: _is_int(v) and v >= 0, "an integer of at least 0")
    _check_n(endpoint, fields)
    max_tokens = _max_tokens(endpoint, fields)
    if max_tokens is not None and fields.get("min_tokens", 0) > max(max_tokens, 1):
        raise BadRequest(f"`min_tokens` must be at most the output limit, {max_tokens}.", param="min_tokens")


def _check_n(endpoint: Endpoint, fields: Fields) -> None:
    check = _check_optional if endpoint is Endpoint.CHAT else _check_present
    check(fields, "n", lambda v: _is_int(v) and 1 <= v <= MAX_CHOICES, f"an integer from 1 to {MAX_CHOICES}")


def _max_tokens(endpoint: Endpoint, fields: Fields) -> int | None:
    if endpoint is Endpoint.CHAT:
        limit = fields.get("max_completion_tokens")
        return limit if limit is not None else fields.get("max_tokens")
    limit = fields.get("max_tokens")
    return limit if limit is not None else COMPLETIONS_DEFAULT_MAX_TOKENS


def _check_sampling(fields: Fields) -> None:
    _check_optional(fields, "temperature", lambda v: _is_number(v) and 0 <= v <= 2, "a number from 0 to 2")
    _check_optional(fields, "top_p", lambda v: _is_number(v) and 0 < v <= 1, "a number above 0, at most 1")
    temperature = fields.get("temperature")
    is_greedy = temperature is not None and temperature < GREEDY_BELOW
    if is_greedy and (fields.get("n") or 1) > 1 and not fields.get("use_beam_search"):
        raise BadRequest("`n` must be 1 when `temperature` is 0: the choices would be the same.", param="n")


def _check_logprobs(endpoint: Endpoint, fields: Fields) -> None:
    at_least = "an integer of at least 0, or -1"
    _check_optional(fields, "prompt_logprobs", lambda v: _is_int(v) and v >= -1, at_least)
    if fields.get("prompt_logprobs") and fields.get("stream"):
        raise BadRequest("`prompt_logprobs` is not available when `stream` is true.", param="prompt_logprobs")
    if endpoint is Endpoint.CHAT:
        _check_optional(fields, "logprobs", lambda v: isinstance(v, bool), "a boolean")
        _check_optional(fields, "top_logprobs", lambda v: _is_int(v) and v >= -1, at_least)
        if fields.get("top_logprobs") and not fields.get("logprobs"):
            raise BadRequest("`top_logprobs` needs `logprobs` to be true.", param="top_logprobs")
        has_logprobs = bool(fields.get("logprobs"))
    else:
        _check_optional(fields, "logprobs", lambda v: _is_int(v) and v >= -1, at_least)
        has_logprobs = fields.get("logprobs") is not None
    _check_optional(fields, "logprob_token_ids", _is_int_list, "a list of integers")
    if fields.get("logprob_token_ids") and not has_logprobs:
        raise BadRequest("`logprob_token_ids` needs `logprobs` to be set.", param="logprob_token_ids")


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise BadRequest("`messages` must be a non-empty list.", param="messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BadRequest(f"`messages[{index}]` must be an object.", param=f"messages[{index}]")
        content = message.get("content")
        if isinstance(content, list) and any(_is_media(part) for part in content):
            raise BadRequest("This model takes text only: no images, audio, video or files.", param="messages")


def _is_media(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    return (isinstance(kind, str) and kind in MEDIA_KEYS) or not MEDIA_KEYS.isdisjoint(part)


def _check_prompt(fields: Fields) -> None:
    if fields.get("prompt_embeds") is not None:
        raise BadRequest("This service takes prompts as text or token ids only.", param="prompt_embeds")
    prompt = fields.get("prompt")
    prompts = prompt if isinstance(prompt, list) and not _is_token_ids(prompt) else [prompt]
    if not prompts or not all(_is_prompt(one) for one in prompts):
        raise BadRequest(
            "`prompt` must be a non-empty string, a non-empty list of token ids, or a list of either.", param="prompt"
        )


def _is_prompt(value: Any) -> bool:
    return (isinstance(value, str) and value != "") or _is_token_ids(value)


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_int(item) and item >= 0 for item in value)


def _is_stop(value: Any) -> bool:
    strings = value if isinstance(value, list) else [value]
    return all(isinstance(item, str) and item != "" for item in strings)


def _is_int_list(value: Any) -> bool:
    return isinstance(value, list) and all(_is_int(item) for item in value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_int(value) or (isinstance(value, float) and isfinite(value))


def _check_optional(fields: Fields, name: str, is_right: Callable[[Any], bool], wanted: str) -> None:
    """Null means "not given", as in vLLM's optional fields."""
    if fields.get(name) is not None:
        _check_present(fields, name, is_right, wanted)


def _check_present(fields: Fields, name: str, is_right: Callable[[Any], bool], wanted: str) -> None:
    if name in fields and not is_right(fields[name]):
        raise BadRequest(f"`{name}` must be {wanted}.", param=name)

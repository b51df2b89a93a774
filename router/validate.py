"""What the router itself must check of chat and completions, as the prefill leg doesn't carry it. Meanings are vLLM's.

Everything else (message contents, tools, templates, vocabulary) is left to vLLM, which sees it on the prefill leg.
No message quotes a value: it may be part of a prompt.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from router.context import Plan
from router.endpoints import Endpoint, Route
from router.field_checks import check_fields, is_int, is_token_ids
from router.json_members import Member
from router.media import check_text_only
from router.schema_bounds import SCHEMA_FIELDS, check_schema_bounds
from wire.errors import BadRequest

COMPLETIONS_DEFAULT_MAX_TOKENS = 16
# vLLM treats a lower temperature as greedy, where several choices would be the same.
GREEDY_BELOW = 1e-5

# Without one of these a request has nothing that must be looked at together, and takes the usual route.
RARE = frozenset(
    {
        *("stream_options", "n", "use_beam_search", "echo", "truncate_prompt_tokens"),
        *("prompt_logprobs", "logprobs", "top_logprobs", "logprob_token_ids", *SCHEMA_FIELDS),
    }
)

Fields = Mapping[str, Any]


def plan_request(endpoint: Endpoint, members: Iterable[Member]) -> Plan:
    """Check the decoded top-level fields and decide the route.

    Raises:
        BadRequest: ``param`` names the field.
    """
    fields = check_fields(endpoint, members)
    max_tokens = _check_limits(endpoint, fields)
    if endpoint is Endpoint.CHAT:
        _check_messages(fields.get("messages"))
    else:
        _check_prompt(fields)
    route, reason = Route.PREFILL_DECODE, "handoff"
    if not RARE.isdisjoint(fields):
        _check_stream_options(fields)
        _check_greedy(fields)
        _check_logprobs(endpoint, fields)
        check_schema_bounds(fields)
        route, reason = _choose_route(endpoint, fields, max_tokens)
    elif endpoint is Endpoint.COMPLETIONS and _has_several_prompts(fields["prompt"]):
        route, reason = Route.DECODE_ONLY, "multi_prompt"
    return Plan(
        model=fields.get("model"),
        is_stream=bool(fields.get("stream")),
        num_choices=fields.get("n") or 1,
        max_tokens=max_tokens,
        route=route,
        reason=reason,
        priority=fields.get("priority", 0),
    )


def _choose_route(endpoint: Endpoint, fields: Fields, max_tokens: int | None) -> tuple[Route, str]:
    if fields.get("use_beam_search"):
        return Route.DECODE_ONLY, "beam_search"
    if _wants_prompt_logprobs(endpoint, fields):
        return Route.DECODE_ONLY, "prompt_logprobs"
    if _has_several_prompts(fields.get("prompt")):
        return Route.DECODE_ONLY, "multi_prompt"
    if endpoint is Endpoint.CHAT and max_tokens is None and fields.get("truncate_prompt_tokens") == -1:
        # vLLM then keeps one prompt token more than with a limit, so the two legs would disagree on the prompt.
        return Route.DECODE_ONLY, "unbounded_truncation"
    return Route.PREFILL_DECODE, "handoff"


def _wants_prompt_logprobs(endpoint: Endpoint, fields: Fields) -> bool:
    if fields.get("prompt_logprobs") is not None:
        return True
    # With echo vLLM takes prompt_logprobs from logprobs (completions) or from top_logprobs, 0 if absent (chat).
    return bool(fields.get("echo")) and (endpoint is Endpoint.CHAT or fields.get("logprobs") is not None)


def _has_several_prompts(prompt: Any) -> bool:
    return isinstance(prompt, list) and len(prompt) > 1 and not is_int(prompt[0])


def _check_stream_options(fields: Fields) -> None:
    options = fields.get("stream_options")
    if not options:
        return
    if not fields.get("stream"):
        raise BadRequest("`stream_options` can only be set when `stream` is true.", param="stream_options")
    for name in ("include_usage", "continuous_usage_stats"):
        if not isinstance(options.get(name), bool | None):
            raise BadRequest(f"`stream_options.{name}` must be a boolean.", param=f"stream_options.{name}")


def _check_limits(endpoint: Endpoint, fields: Fields) -> int | None:
    """The limit on output tokens, if there is one."""
    max_tokens = _max_tokens(endpoint, fields)
    if max_tokens == 0 and not fields.get("echo"):
        raise BadRequest("`max_tokens` must be an integer of at least 1.", param="max_tokens")
    if max_tokens is not None and fields.get("min_tokens", 0) > max(max_tokens, 1):
        raise BadRequest(f"`min_tokens` must be at most the output limit, {max_tokens}.", param="min_tokens")
    return max_tokens


def _max_tokens(endpoint: Endpoint, fields: Fields) -> int | None:
    if endpoint is Endpoint.CHAT:
        limit = fields.get("max_completion_tokens")
        return limit if limit is not None else fields.get("max_tokens")
    limit = fields.get("max_tokens")
    return limit if limit is not None else COMPLETIONS_DEFAULT_MAX_TOKENS


def _check_greedy(fields: Fields) -> None:
    temperature = fields.get("temperature")
    is_greedy = temperature is not None and temperature < GREEDY_BELOW
    if is_greedy and (fields.get("n") or 1) > 1 and not fields.get("use_beam_search"):
        raise BadRequest("`n` must be 1 when `temperature` is 0: the choices would be the same.", param="n")


def _check_logprobs(endpoint: Endpoint, fields: Fields) -> None:
    if fields.get("prompt_logprobs") and fields.get("stream"):
        raise BadRequest("`prompt_logprobs` is not available when `stream` is true.", param="prompt_logprobs")
    logprobs = fields.get("logprobs")
    if endpoint is Endpoint.CHAT and fields.get("top_logprobs") and not logprobs:
        raise BadRequest("`top_logprobs` needs `logprobs` to be true.", param="top_logprobs")
    has_logprobs = bool(logprobs) if endpoint is Endpoint.CHAT else logprobs is not None
    if fields.get("logprob_token_ids") and not has_logprobs:
        raise BadRequest("`logprob_token_ids` needs `logprobs` to be set.", param="logprob_token_ids")


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise BadRequest("`messages` must be a non-empty list.", param="messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BadRequest(f"`messages[{index}]` must be an object.", param=f"messages[{index}]")
        content = message.get("content")
        if isinstance(content, list):
            check_text_only(content, "messages")


def _check_prompt(fields: Fields) -> None:
    if fields.get("prompt_embeds") is not None:
        raise BadRequest("`prompt_embeds` is not supported: send text or token ids.", param="prompt_embeds")
    prompt = fields.get("prompt")
    prompts = prompt if isinstance(prompt, list) and not is_token_ids(prompt) else [prompt]
    if not prompts or not all(_is_prompt(one) for one in prompts):
        raise BadRequest(
            "`prompt` must be a non-empty string, a non-empty list of token ids, or a list of either.", param="prompt"
        )


def _is_prompt(value: Any) -> bool:
    return (isinstance(value, str) and value != "") or is_token_ids(value)

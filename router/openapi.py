"""Makes the OpenAPI page true: adds what is raw ASGI, so unknown to FastAPI's generator, and corrects its guesses."""

from collections.abc import Iterable
from typing import Any

from router.endpoints import Endpoint
from router.error_shapes import ANTHROPIC_ERRORS
from router.openapi_answers import ANSWERS, ANTHROPIC_ERROR, ERROR, MODEL_CARD, MODEL_LIST, READY
from router.openapi_requests import HEADERS, request_body

_ERRORS = {
    "400": "The request can't be served as written; the message names the field.",
    "401": "The key or token is missing or wrong.",
    "404": "No such model, or worker.",
    "409": "The worker pairs with no other.",
    "413": "The body is too long.",
    "429": "Too many requests of this API key are in flight, or the workers take no more now; `Retry-After` says when"
    " to come again, where that is known.",
    "502": "A worker failed.",
    "503": "No worker is ready, or the router is stopping.",
    "504": "A worker did not answer in time, none had room in time, or the request's own time was up.",
}
_SUMMARIES = {
    Endpoint.CHAT: "Answer a conversation",
    Endpoint.COMPLETIONS: "Continue a prompt",
    Endpoint.RESPONSES: "Answer in OpenAI's Responses API; nothing is stored",
    Endpoint.MESSAGES: "Answer in Anthropic's Messages API",
    Endpoint.COUNT_TOKENS: "How many tokens a conversation has",
    Endpoint.EMBEDDINGS: "Embed text, where a worker serves an embedding model",
    Endpoint.TOKENIZE: "The tokens of a prompt or a conversation",
    Endpoint.DETOKENIZE: "The text of tokens",
}
_WORKER_ERRORS = ("400", "401", "404", "413", "429", "502", "503", "504")
_HEARTBEAT = ("200", "400", "401", "409")
# Route -> every status that it can have. FastAPI's guess, a 422 wherever something is read, is wrong here.
_STATUSES = {
    ("/health", "get"): ("200",),
    ("/ready", "get"): ("200", "503"),
    ("/metrics", "get"): ("200",),
    ("/v1/models", "get"): ("200", "401"),
    ("/v1/models/{model_id}", "get"): ("200", "401", "404"),
    ("/v1/responses/{response_id}", "get"): ("400", "401"),
    ("/v1/responses/{response_id}", "delete"): ("400", "401"),
    ("/v1/responses/{response_id}/input_items", "get"): ("400", "401"),
    ("/v1/responses/{response_id}/cancel", "post"): ("400", "401"),
    ("/internal/workers", "post"): _HEARTBEAT,
    ("/internal/workers", "get"): ("200", "401"),
    ("/internal/workers/check", "post"): ("204", "400", "401", "409"),
    ("/internal/workers/{worker_id}", "delete"): ("204", "401", "404"),
}


def complete_page(page: dict[str, Any], endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """``page`` as FastAPI made it, changed in place; ``endpoints`` are those that the application has as raw ASGI."""
    schemas = page.setdefault("components", {}).setdefault("schemas", {})
    schemas |= {"Error": ERROR, "AnthropicError": ANTHROPIC_ERROR}
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path, methods in page["paths"].items():
        for method, operation in methods.items():
            _correct(operation, (path, method))
    page["paths"] |= {endpoint.url_path: {"post": _operation(endpoint)} for endpoint in endpoints}
    return page


def _correct(operation: dict[str, Any], route: tuple[str, str]) -> None:
    guessed = operation["responses"]
    answers = {status: guessed.get(status) or _error(status, "Error") for status in _STATUSES[route]}
    answers |= {status: _error(status, "Error") for status in answers if status in ("400", "401", "404", "409")}
    operation["responses"] = answers | _own_answers().get(route, {})


def _own_answers() -> dict[tuple[str, str], dict[str, Any]]:
    text = {"text/plain": {"schema": {"type": "string"}}}
    return {
        ("/health", "get"): {"200": {"description": "The process is alive."}},
        ("/ready", "get"): {
            "200": _answer("Requests can be served; says which roles are missing all the same.", READY),
            "503": _answer("They can't: roles are missing, or the router is stopping.", READY),
        },
        ("/metrics", "get"): {"200": {"description": "Prometheus exposition text.", "content": text}},
        ("/v1/models", "get"): {"200": _answer("The models.", MODEL_LIST)},
        ("/v1/models/{model_id}", "get"): {"200": _answer("The model.", MODEL_CARD)},
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    good = _answer("The answer, as the worker wrote it.", ANSWERS[endpoint])
    if endpoint.stream_ends:
        good["description"] += " Server-sent events when `stream` is true."
        good["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    error = "AnthropicError" if endpoint.errors is ANTHROPIC_ERRORS else "Error"
    return {
        "tags": ["tokens" if endpoint.prefill is None else "generate"],
        "summary": _SUMMARIES[endpoint],
        "operationId": endpoint.value,
        "parameters": HEADERS,
        "requestBody": request_body(endpoint),
        "responses": {"200": good} | {status: _error(status, error) for status in _WORKER_ERRORS},
    }


def _answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _error(status: str, schema: str) -> dict[str, Any]:
    return _answer(_ERRORS[status], {"$ref": f"#/components/schemas/{schema}"})

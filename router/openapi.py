"""OpenAPI for the generating endpoints, which are raw ASGI and so unknown to FastAPI's own generator."""

from typing import Any

from router.context import Endpoint

ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["integer", "string", "null"]},
            },
        }
    },
}

# The fields that the router itself checks; workers take vLLM's others too.
_SHARED_FIELDS: dict[str, Any] = {
    "model": {"type": ["string", "null"], "minLength": 1},
    "max_tokens": {"type": ["integer", "null"]},
    "min_tokens": {"type": "integer", "minimum": 0},
    "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 128},
    "stream": {"type": ["boolean", "null"]},
    "stream_options": {"type": ["object", "null"]},
    "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
    "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
    "stop": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
}
_CHAT_FIELDS: dict[str, Any] = {
    "messages": {"type": "array", "minItems": 1, "items": {"type": "object"}},
    "max_completion_tokens": {"type": ["integer", "null"], "minimum": 1},
    "logprobs": {"type": ["boolean", "null"]},
    "top_logprobs": {"type": ["integer", "null"], "minimum": -1},
    "tools": {"type": ["array", "null"], "items": {"type": "object"}},
    "tool_choice": {},
}
_TOKEN_IDS: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_COMPLETIONS_FIELDS: dict[str, Any] = {
    "prompt": {"anyOf": [_TEXT, _TOKEN_IDS, {"type": "array", "minItems": 1, "items": {"anyOf": [_TEXT, _TOKEN_IDS]}}]},
    "logprobs": {"type": ["integer", "null"], "minimum": -1},
    "echo": {"type": ["boolean", "null"]},
}
_ERRORS = {
    "400": "The request can't be served as written.",
    "401": "The API key is missing or wrong.",
    "404": "No such model.",
    "413": "The body is too long.",
    "502": "A worker failed.",
    "503": "No worker is ready.",
    "504": "A worker did not answer in time.",
}


def generate_operation(endpoint: Endpoint) -> dict[str, Any]:
    """The OpenAPI operation object of one generating endpoint."""
    required, fields, summary = (
        ("messages", _CHAT_FIELDS, "Answer a conversation")
        if endpoint is Endpoint.CHAT
        else ("prompt", _COMPLETIONS_FIELDS, "Continue a prompt")
    )
    schema = {
        "type": "object",
        "required": [required],
        "properties": _SHARED_FIELDS | fields,
        "additionalProperties": True,
    }
    answers: dict[str, Any] = {
        "200": {
            "description": "The answer; server-sent events when `stream` is true.",
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "text/event-stream": {"schema": {"type": "string"}},
            },
        }
    }
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    answers |= {status: {"description": text, "content": error} for status, text in _ERRORS.items()}
    return {
        "tags": ["generate"],
        "summary": summary,
        "operationId": endpoint.value,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": answers,
    }

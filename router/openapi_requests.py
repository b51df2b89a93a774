"""OpenAPI schemas and examples of what clients send: the fields that the router checks, and the usual others.

Workers take vLLM's further fields too, so no schema is closed.
"""

from typing import Any

from router.endpoints import Endpoint

_MODEL_NAME = "tandem-nano"
_HELLO = [{"role": "user", "content": "Hello"}]

HEADERS: list[dict[str, Any]] = [
    {
        "name": "x-request-id",
        "in": "header",
        "required": False,
        "description": "Passed on to the workers and given back; another one is made up where it is not usable.",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"},
    },
    {
        "name": "x-tandem-timing",
        "in": "header",
        "required": False,
        "description": "`1`: the answer's `server-timing` says how long each stage took, up to the first byte.",
        "schema": {"type": "string", "enum": ["1"]},
    },
    {
        "name": "x-request-timeout",
        "in": "header",
        "required": False,
        "description": "Seconds that the whole request may take; the operator may have set less.",
        "schema": {"type": "number", "exclusiveMinimum": 0},
    },
    {
        "name": "traceparent",
        "in": "header",
        "required": False,
        "description": "W3C trace context, with `tracestate`; goes on to the workers if it is valid.",
        "schema": {"type": "string"},
    },
]

_MODEL: dict[str, Any] = {"type": ["string", "null"], "minLength": 1}
_FLAG: dict[str, Any] = {"type": ["boolean", "null"]}
_OBJECT: dict[str, Any] = {"type": ["object", "null"]}
_LIMIT: dict[str, Any] = {"type": ["integer", "null"], "minimum": 1}
_LOGPROBS: dict[str, Any] = {"type": ["integer", "null"], "minimum": -1}
_OBJECTS: dict[str, Any] = {"type": ["array", "null"], "items": {"type": "object"}}
_STRINGS: dict[str, Any] = {"type": ["array", "null"], "items": {"type": "string"}}
_TOKEN_IDS: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_MESSAGES: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "object"}}
_TEXT_OR_PARTS: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}

_EVERYWHERE: dict[str, Any] = {
    "model": _MODEL,
    "stream": _FLAG,
    "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
    "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
}
_PRIORITY: dict[str, Any] = {
    "type": "integer",
    "description": "Lower is earlier, where requests wait; 0 where there is none.",
}
_STOP: dict[str, Any] = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, {"type": "null"}]}
_COMPLETING: dict[str, Any] = _EVERYWHERE | {
    "max_tokens": {"type": ["integer", "null"], "minimum": 0},
    "min_tokens": {"type": "integer", "minimum": 0},
    "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 128},
    "stream_options": _OBJECT,
    "stop": _STOP,
    "response_format": _OBJECT,
    "structured_outputs": _OBJECT,
    "priority": _PRIORITY,
}
_TOKENIZED: dict[str, Any] = {
    "model": _MODEL,
    "prompt": {"type": "string"},
    "messages": _MESSAGES,
    "add_special_tokens": {"type": "boolean"},
    "return_token_strs": _FLAG,
}
_COUNTED: dict[str, Any] = {
    "model": _TEXT,
    "messages": _MESSAGES,
    "system": _TEXT_OR_PARTS,
    "tools": _OBJECTS,
    "tool_choice": _OBJECT,
    "thinking": _OBJECT,
    "output_config": _OBJECT,
}

# Endpoint -> what it requires, what it may have, a body that it takes.
_BODIES: dict[Endpoint, tuple[list[str], dict[str, Any], dict[str, Any]]] = {
    Endpoint.CHAT: (
        ["messages"],
        _COMPLETING
        | {
            "messages": _MESSAGES,
            "max_completion_tokens": _LIMIT,
            "logprobs": _FLAG,
            "top_logprobs": _LOGPROBS,
            "tools": _OBJECTS,
            "tool_choice": {"type": ["string", "object", "null"]},
        },
        {"model": _MODEL_NAME, "messages": _HELLO, "max_tokens": 32},
    ),
    Endpoint.COMPLETIONS: (
        ["prompt"],
        _COMPLETING
        | {
            "prompt": {
                "anyOf": [_TEXT, _TOKEN_IDS, {"type": "array", "minItems": 1, "items": {"anyOf": [_TEXT, _TOKEN_IDS]}}]
            },
            "logprobs": _LOGPROBS,
            "echo": _FLAG,
        },
        {"model": _MODEL_NAME, "prompt": "The sea", "max_tokens": 32},
    ),
    Endpoint.RESPONSES: (
        ["input"],
        _EVERYWHERE
        | {
            "input": _TEXT_OR_PARTS,
            "instructions": {"type": ["string", "null"]},
            "max_output_tokens": _LIMIT,
            "priority": _PRIORITY,
            "include": _STRINGS,
            "top_logprobs": _LOGPROBS,
            "text": _OBJECT,
            "reasoning": _OBJECT,
            "tools": _OBJECTS,
            "tool_choice": {"type": ["string", "object", "null"]},
            "store": {**_FLAG, "description": "Nothing is stored, whatever this says."},
            "background": {"enum": [None, False]},
            "previous_response_id": {"type": "null", "description": "Not supported: no response is stored."},
            "conversation": {"type": "null", "description": "Not supported: no conversation is stored."},
        },
        {"model": _MODEL_NAME, "input": "Hello", "max_output_tokens": 32},
    ),
    Endpoint.MESSAGES: (
        ["model", "max_tokens", "messages"],
        _EVERYWHERE
        | _COUNTED
        | {
            "max_tokens": {"type": "integer", "minimum": 1},
            "stop_sequences": _STRINGS,
            "top_k": {"type": ["integer", "null"]},
        },
        {"model": _MODEL_NAME, "messages": _HELLO, "max_tokens": 32},
    ),
    Endpoint.COUNT_TOKENS: (["model", "messages"], _COUNTED, {"model": _MODEL_NAME, "messages": _HELLO}),
    Endpoint.EMBEDDINGS: (
        [],
        {
            "model": _MODEL,
            "input": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1}]},
            "messages": _MESSAGES,
            "encoding_format": {"type": "string"},
            "dimensions": _LIMIT,
        },
        {"model": _MODEL_NAME, "input": "The sea"},
    ),
    Endpoint.TOKENIZE: ([], _TOKENIZED, {"model": _MODEL_NAME, "prompt": "The sea"}),
    Endpoint.DETOKENIZE: (
        ["tokens"],
        {"model": _MODEL, "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
        {"model": _MODEL_NAME, "tokens": [1, 2, 3]},
    ),
}


def request_body(endpoint: Endpoint) -> dict[str, Any]:
    """The OpenAPI request body object of an endpoint, with examples."""
    required, fields, example = _BODIES[endpoint]
    schema = {"type": "object", "required": required, "properties": fields, "additionalProperties": True}
    examples = {"whole": {"value": example}}
    if endpoint.stream_ends:
        examples["streamed"] = {"value": example | {"stream": True}}
    return {"required": True, "content": {"application/json": {"schema": schema, "examples": examples}}}

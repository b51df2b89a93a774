"""OpenAPI schemas of what workers answer, and of errors. Members beyond these come as the worker writes them."""

from typing import Any

from router.endpoints import Endpoint

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_USAGE: Schema = {
    "type": "object",
    "properties": {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT},
}
_INPUT_OUTPUT_USAGE: Schema = {
    "type": ["object", "null"],
    "properties": {"input_tokens": _COUNT, "output_tokens": _COUNT},
}


def _object(required: dict[str, Schema], **more: Schema) -> Schema:
    return {"type": "object", "required": sorted(required), "properties": required | more}


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


ERROR: Schema = _object(
    {
        "error": _object(
            {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["integer", "string", "null"]},
            }
        )
    }
)
ANTHROPIC_ERROR: Schema = _object({"type": {"const": "error"}, "error": _object({"type": _TEXT, "message": _TEXT})})

_CHOICE: Schema = _object({"index": _COUNT}, finish_reason={"type": ["string", "null"]})
ANSWERS: dict[Endpoint, Schema] = {
    Endpoint.CHAT: _object(
        {"id": _TEXT, "choices": _list_of(_CHOICE | _object({"message": {"type": "object"}}))}, usage=_USAGE
    ),
    Endpoint.COMPLETIONS: _object({"id": _TEXT, "choices": _list_of(_CHOICE | _object({"text": _TEXT}))}, usage=_USAGE),
    Endpoint.RESPONSES: _object(
        {
            "id": _TEXT,
            "object": {"const": "response"},
            "status": {"enum": ["completed", "incomplete", "failed", "cancelled"]},
            "output": _list_of(_object({"type": _TEXT})),
        },
        usage=_INPUT_OUTPUT_USAGE,
    ),
    Endpoint.MESSAGES: _object(
        {
            "id": _TEXT,
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "content": _list_of(_object({"type": _TEXT})),
            "model": _TEXT,
        },
        stop_reason={"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", None]},
        usage=_INPUT_OUTPUT_USAGE,
    ),
    Endpoint.COUNT_TOKENS: _object({"input_tokens": _COUNT}),
    Endpoint.EMBEDDINGS: _object(
        {"data": _list_of(_object({"index": _COUNT, "embedding": {"type": ["array", "string"]}}))}, usage=_USAGE
    ),
    Endpoint.TOKENIZE: _object({"count": _COUNT, "max_model_len": _COUNT, "tokens": _list_of(_COUNT)}),
    Endpoint.DETOKENIZE: _object({"prompt": _TEXT}),
}
MODEL_CARD: Schema = _object(
    {"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT},
    max_model_len={"type": ["integer", "null"]},
)
MODEL_LIST: Schema = _object({"object": {"const": "list"}, "data": _list_of(MODEL_CARD)})
READY: Schema = _object({"ready": {"type": "boolean"}, "missing": _list_of({"enum": ["prefill", "decode"]})})

"""What fake workers answer on each API, whole and streamed, in vLLM's spelling."""

import json
from dataclasses import dataclass
from typing import Any

MODEL = "nano"
Json = dict[str, Any]

EMBEDDINGS = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}], "model": MODEL}
# Endpoints that one worker answers.
ONE_WORKER: dict[str, Json] = {
    "/v1/embeddings": EMBEDDINGS,
    "/tokenize": {"count": 3, "max_model_len": 8192, "tokens": [1, 2, 3], "token_strs": None},
    "/detokenize": {"prompt": "hi"},
    "/v1/messages/count_tokens": {"input_tokens": 3, "context_management": {"original_input_tokens": 3}},
}
# The name of the limit on output tokens, where it is another than usual.
LIMIT_FIELDS = {"/v1/responses": "max_output_tokens"}


@dataclass(frozen=True)
class Answer:
    """One answer in both forms; ``pieces`` are whole events."""

    whole: bytes
    pieces: tuple[bytes, ...]


def data_event(value: Json) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def named_event(value: Json) -> bytes:
    """An event whose name is its type, as Responses and Messages have them."""
    return b"event: " + value["type"].encode() + b"\n" + data_event(value)


def chat(message: Json, deltas: list[Json], finish_reason: str = "stop") -> Answer:
    """A chat completion with one choice."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    frame: Json = {"id": "chatcmpl-1", "created": 1, "model": MODEL}
    choice: Json = {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": finish_reason}
    whole = frame | {"object": "chat.completion", "choices": [choice], "usage": usage}
    steps: list[tuple[Json, str | None]] = [({"role": "assistant"}, None), *((delta, None) for delta in deltas)]
    chunks: list[Json] = [
        {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for delta, reason in [*steps, ({}, finish_reason)]
    ]
    events = [data_event(frame | chunk) for chunk in chunks]
    return Answer(json.dumps(whole).encode(), (*events, b"data: [DONE]\n\n"))


def chat_text(text: str) -> Answer:
    return chat({"content": text}, [{"content": text[:3]}, {"content": text[3:]}])


def chat_tool_call(name: str, arguments: str) -> Answer:
    call: Json = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    deltas: list[Json] = [
        {"tool_calls": [{"index": 0} | call | {"function": {"name": name, "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]},
    ]
    return chat({"content": None, "tool_calls": [call]}, deltas, "tool_calls")


def _response(status: str, output: list[Json]) -> Json:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": MODEL,
        "status": status,
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "metadata": None,
        "usage": None,
        "kv_transfer_params": None,
    }


def _response_events(item: Json, steps: list[Json]) -> tuple[bytes, ...]:
    empty = item | {key: type(item[key])() for key in ("content", "arguments") if key in item}
    where = {"output_index": 0}
    events: list[Json] = [
        {"type": "response.created", "response": _response("in_progress", [])},
        {"type": "response.in_progress", "response": _response("in_progress", [])},
        {"type": "response.output_item.added", "item": empty | {"status": "in_progress"}} | where,
        *(step | {"item_id": item["id"]} | where for step in steps),
        {"type": "response.output_item.done", "item": item} | where,
        {"type": "response.completed", "response": _response("completed", [item])},
    ]
    return tuple(named_event(event | {"sequence_number": number}) for number, event in enumerate(events))


def response_text(text: str) -> Answer:
    part: Json = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
    item: Json = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    steps: list[Json] = [
        {"type": "response.content_part.added", "content_index": 0, "part": part | {"text": ""}},
        {"type": "response.output_text.delta", "content_index": 0, "delta": text[:3], "logprobs": []},
        {"type": "response.output_text.delta", "content_index": 0, "delta": text[3:], "logprobs": []},
        {"type": "response.output_text.done", "content_index": 0, "text": text, "logprobs": []},
        {"type": "response.content_part.done", "content_index": 0, "part": part},
    ]
    return Answer(json.dumps(_response("completed", [item])).encode(), _response_events(item, steps))


def response_tool_call(name: str, arguments: str) -> Answer:
    item: Json = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": name, "arguments": arguments}
    item["status"] = "completed"
    steps: list[Json] = [
        {"type": "response.function_call_arguments.delta", "delta": arguments},
        {"type": "response.function_call_arguments.done", "arguments": arguments, "name": name},
    ]
    return Answer(json.dumps(_response("completed", [item])).encode(), _response_events(item, steps))


def message(block: Json, empty: Json, deltas: list[Json], stop_reason: str = "end_turn") -> Answer:
    """One of Anthropic's messages, with one content block."""
    usage = {"input_tokens": 3, "output_tokens": 2}
    frame: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL}
    whole = frame | {"content": [block], "stop_reason": stop_reason, "stop_sequence": None, "usage": usage}
    start = frame | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    events: list[Json] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop_reason, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]
    return Answer(json.dumps(whole).encode(), tuple(map(named_event, events)))


def message_text(text: str) -> Answer:
    deltas = [{"type": "text_delta", "text": part} for part in (text[:3], text[3:])]
    return message({"type": "text", "text": text}, {"type": "text", "text": ""}, deltas)


def message_tool_use(name: str, arguments: Json) -> Answer:
    block: Json = {"type": "tool_use", "id": "call_1", "name": name, "input": arguments}
    delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    return message(block, block | {"input": {}}, [delta], "tool_use")


DEFAULTS: dict[str, Answer] = {
    "/v1/responses": response_text("Hello"),
    "/v1/messages": message_text("Hello"),
}

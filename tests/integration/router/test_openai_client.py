"""What the `openai` client itself does works against the router: helpers, tools, parsing, retries, exceptions."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.integration.router import api_answers
from tests.integration.router.api_answers import MODEL, Answer, Json
from tests.integration.router.conftest import CHAT, TEXT, Cluster

CHAT_PATH, RESPONSES_PATH = "/v1/chat/completions", "/v1/responses"
RESPONSES: Json = {"model": MODEL, "input": "hi"}
TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
RESPONSES_TOOL: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}


class Point(BaseModel):
    """What structured outputs are parsed into."""

    x: int
    y: int


@pytest.fixture
async def ai(cluster: Cluster) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{cluster.http.base_url}/v1", api_key="k") as client:
        yield client


def script(cluster: Cluster, path: str, answer: Answer) -> None:
    for decode in cluster.decodes:
        decode.answers[path] = answer


# --- chat and completions ---


async def test_chat_is_read_whole_and_streamed(cluster: Cluster, ai: AsyncOpenAI) -> None:
    script(cluster, CHAT_PATH, api_answers.chat_text("Hello"))
    whole = await ai.chat.completions.create(**CHAT)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("Hello", "stop")
    chunks = [chunk async for chunk in await ai.chat.completions.create(**CHAT, stream=True)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"


async def test_the_chat_stream_helper_gathers_the_answer(cluster: Cluster, ai: AsyncOpenAI) -> None:
    script(cluster, CHAT_PATH, api_answers.chat_text("Hello"))
    async with ai.chat.completions.stream(**CHAT) as stream:
        deltas = [event.delta async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    assert deltas == ["Hel", "lo"]
    assert final.choices[0].message.content == "Hello"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_chat_tool_call_arrives_and_its_schema_left_unchanged(
    cluster: Cluster, ai: AsyncOpenAI, is_stream: bool
) -> None:
    script(cluster, CHAT_PATH, api_answers.chat_tool_call("add", '{"x":1}'))
    if is_stream:
        async with ai.chat.completions.stream(**CHAT, tools=[TOOL], tool_choice="auto") as stream:
            message: Any = (await stream.get_final_completion()).choices[0].message
    else:
        message = (await ai.chat.completions.create(**CHAT, tools=[TOOL], tool_choice="auto")).choices[0].message
    [call] = message.tool_calls
    assert (call.function.name, call.function.arguments) == ("add", '{"x":1}')
    for request in cluster.prefill.requests + cluster.decode.requests:
        assert (request["tools"], request["tool_choice"]) == ([TOOL], "auto")


async def test_chat_parses_structured_outputs(cluster: Cluster, ai: AsyncOpenAI) -> None:
    script(cluster, CHAT_PATH, api_answers.chat_text('{"x":1,"y":2}'))
    parsed = await ai.chat.completions.parse(**CHAT, response_format=Point)
    assert parsed.choices[0].message.parsed == Point(x=1, y=2)
    [decoded] = cluster.decode.requests
    assert decoded["response_format"]["json_schema"]["schema"]["required"] == ["x", "y"]


async def test_completions_are_read_whole_and_streamed(cluster: Cluster, ai: AsyncOpenAI) -> None:
    frame: Json = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL}
    parts = [frame | {"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in ("Hel", "lo")]
    pieces = (*map(api_answers.data_event, parts), b"data: [DONE]\n\n")
    script(cluster, "/v1/completions", Answer(b'{"id":"cmpl-1","choices":[{"index":0,"text":"Hello"}]}', pieces))
    assert (await ai.completions.create(**TEXT)).choices[0].text == "Hello"
    stream = await ai.completions.create(**TEXT, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello"


# --- responses ---


async def test_a_response_is_read_whole_and_streamed(ai: AsyncOpenAI) -> None:
    whole = await ai.responses.create(**RESPONSES)
    assert (whole.output_text, whole.status) == ("Hello", "completed")
    events = [event async for event in await ai.responses.create(**RESPONSES, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"


async def test_the_response_stream_helper_gathers_the_answer(ai: AsyncOpenAI) -> None:
    async with ai.responses.stream(**RESPONSES) as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert deltas == ["Hel", "lo"]
    assert final.output_text == "Hello"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_response_may_be_a_tool_call(cluster: Cluster, ai: AsyncOpenAI, is_stream: bool) -> None:
    script(cluster, RESPONSES_PATH, api_answers.response_tool_call("add", '{"x":1}'))
    if is_stream:
        async with ai.responses.stream(**RESPONSES, tools=[RESPONSES_TOOL]) as stream:
            response: Any = await stream.get_final_response()
    else:
        response = await ai.responses.create(**RESPONSES, tools=[RESPONSES_TOOL])
    [call] = response.output
    assert (call.type, call.name, call.arguments) == ("function_call", "add", '{"x":1}')
    assert [request["tools"] for request in cluster.prefill.requests] == [[RESPONSES_TOOL]]


async def test_responses_parse_structured_outputs(cluster: Cluster, ai: AsyncOpenAI) -> None:
    script(cluster, RESPONSES_PATH, api_answers.response_text('{"x":1,"y":2}'))
    parsed = await ai.responses.parse(**RESPONSES, text_format=Point)
    assert parsed.output_parsed == Point(x=1, y=2)
    assert cluster.decode.requests[0]["text"]["format"]["schema"]["required"] == ["x", "y"]


async def test_what_refers_to_stored_responses_is_a_bad_request(ai: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        await ai.responses.create(**RESPONSES, previous_response_id="resp_1")
    for request in (ai.responses.retrieve("resp_1"), ai.responses.delete("resp_1"), ai.responses.cancel("resp_1")):
        with pytest.raises(openai.BadRequestError, match="response_id"):
            await request


async def test_embeddings_are_read(ai: AsyncOpenAI) -> None:
    answer = await ai.embeddings.create(model=MODEL, input="hi", encoding_format="float")
    assert answer.data[0].embedding == [0.5]


# --- retries and errors ---


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_a_workers_429_is_tried_again_until_it_is_served(cluster: Cluster, ai: AsyncOpenAI, leg: str) -> None:
    for worker in cluster.prefills if leg == "prefill" else cluster.decodes:
        worker.refusal_headers = {"retry-after": "0.01"}
        worker.faults.append(429)
    answer = await ai.responses.create(**RESPONSES)
    assert answer.output_text == "Hello"
    assert await cluster.metric(_requests(429)) == 2
    assert await cluster.metric(_requests(200)) == 1


def _requests(code: int) -> str:
    return f'tandem_router_requests_total{{code="{code}",endpoint="responses",model="nano",path="prefill_decode"}}'


async def test_a_429_that_stays_is_a_rate_limit_error_with_the_workers_retry_after(
    cluster: Cluster, ai: AsyncOpenAI
) -> None:
    cluster.prefill.refusal_headers = {"retry-after": "7"}
    cluster.prefill.faults.append(429)
    with pytest.raises(openai.RateLimitError) as caught:
        await ai.with_options(max_retries=0).chat.completions.create(**CHAT)
    assert caught.value.response.headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (400, openai.BadRequestError),
        (404, openai.NotFoundError),
        (422, openai.UnprocessableEntityError),
        (500, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_errors_are_the_clients_exception_classes(
    cluster: Cluster, ai: AsyncOpenAI, fault: int, kind: type[openai.APIStatusError], is_stream: bool
) -> None:
    cluster.decode.faults.append(fault)
    with pytest.raises(kind) as caught:
        await ai.with_options(max_retries=0).chat.completions.create(**CHAT, stream=is_stream)
    assert caught.value.request_id
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"]


async def test_an_unknown_model_is_not_found(ai: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await ai.responses.create(model="gpt-9", input="hi")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("fault", ["break_midway", "no_done"])
async def test_a_stream_that_breaks_raises_and_is_not_taken_for_a_whole_one(
    cluster: Cluster, ai: AsyncOpenAI, fault: str
) -> None:
    script(cluster, CHAT_PATH, api_answers.chat_text("Hello"))
    cluster.decode.faults.append(fault)
    with pytest.raises(openai.APIError, match="ended before"):
        [chunk async for chunk in await ai.chat.completions.create(**CHAT, stream=True)]
    cluster.decodes[1].faults.append(fault)
    with pytest.raises(openai.APIError, match="ended before"):
        async with ai.responses.stream(**RESPONSES) as stream:
            await stream.get_final_response()


class TestApiKeys:
    """With keys configured."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"api_keys": ["right"]}

    async def test_a_wrong_key_is_an_authentication_error(self, ai: AsyncOpenAI) -> None:
        with pytest.raises(openai.AuthenticationError):
            await ai.chat.completions.create(**CHAT)
        assert await ai.with_options(api_key="right").chat.completions.create(**CHAT)

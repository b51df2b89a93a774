"""What the `anthropic` client itself does works against the router: helpers, tools, parsing, retries, exceptions."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic
from pydantic import BaseModel

from tests.integration.router import api_answers
from tests.integration.router.api_answers import MODEL, Answer
from tests.integration.router.conftest import TOKEN, Cluster

BODY: Any = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
TOOL: Any = {"name": "add", "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}}}


class Point(BaseModel):
    """What structured outputs are parsed into."""

    x: int
    y: int


@pytest.fixture
async def claude(cluster: Cluster) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=str(cluster.http.base_url), api_key="k") as client:
        yield client


def script(cluster: Cluster, answer: Answer) -> None:
    for decode in cluster.decodes:
        decode.answers["/v1/messages"] = answer


async def test_a_message_is_read_whole_and_streamed(claude: AsyncAnthropic) -> None:
    whole: Any = await claude.messages.create(**BODY)
    assert (whole.content[0].text, whole.stop_reason, whole.usage.output_tokens) == ("Hello", "end_turn", 2)
    events = [event async for event in await claude.messages.create(**BODY, stream=True)]
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")


async def test_the_client_knows_the_requests_id(cluster: Cluster, claude: AsyncAnthropic) -> None:
    answer = await claude.messages.create(**BODY, extra_headers={"x-request-id": "mine-7"})
    assert answer._request_id == "mine-7"
    with pytest.raises(anthropic.BadRequestError) as refused:
        await claude.messages.create(**BODY | {"max_tokens": 0}, extra_headers={"x-request-id": "mine-8"})
    assert refused.value.request_id == "mine-8"


async def test_the_stream_helper_gathers_the_message(claude: AsyncAnthropic) -> None:
    async with claude.messages.stream(**BODY) as stream:
        deltas = [text async for text in stream.text_stream]
        final: Any = await stream.get_final_message()
    assert deltas == ["Hel", "lo"]
    assert (final.content[0].text, final.stop_reason) == ("Hello", "end_turn")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_message_may_be_a_tool_use(cluster: Cluster, claude: AsyncAnthropic, is_stream: bool) -> None:
    script(cluster, api_answers.message_tool_use("add", {"x": 1}))
    if is_stream:
        async with claude.messages.stream(**BODY, tools=[TOOL]) as stream:
            message: Any = await stream.get_final_message()
    else:
        message = await claude.messages.create(**BODY, tools=[TOOL])
    [block] = message.content
    assert (block.type, block.name, block.input, message.stop_reason) == ("tool_use", "add", {"x": 1}, "tool_use")
    assert [request["tools"] for request in cluster.prefill.requests] == [[TOOL]]


async def test_structured_outputs_are_parsed(cluster: Cluster, claude: AsyncAnthropic) -> None:
    script(cluster, api_answers.message_text('{"x":1,"y":2}'))
    parsed = await claude.messages.parse(**BODY, output_format=Point)
    assert parsed.parsed_output == Point(x=1, y=2)
    for request in cluster.prefill.requests + cluster.decode.requests:
        assert request["output_config"]["format"]["schema"]["required"] == ["x", "y"]


async def test_tokens_are_counted(claude: AsyncAnthropic) -> None:
    counted = await claude.messages.count_tokens(model=MODEL, messages=BODY["messages"])
    assert counted.input_tokens == 3


async def test_models_are_listed(claude: AsyncAnthropic) -> None:
    assert [model.id async for model in claude.models.list()] == [MODEL]


async def test_the_clients_key_goes_no_further_than_the_router(cluster: Cluster, claude: AsyncAnthropic) -> None:
    await claude.messages.create(**BODY)
    for seen in cluster.prefill.headers + cluster.decode.headers:
        assert seen["authorization"] == f"Bearer {TOKEN}"
        assert not [name for name in seen if name.startswith(("x-api-key", "anthropic-", "x-stainless"))]


# --- retries and errors ---


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_a_workers_429_is_tried_again_until_it_is_served(
    cluster: Cluster, claude: AsyncAnthropic, leg: str
) -> None:
    for worker in cluster.prefills if leg == "prefill" else cluster.decodes:
        worker.refusal_headers = {"retry-after": "0.01"}
        worker.faults.append(429)
    message: Any = await claude.messages.create(**BODY)
    assert message.content[0].text == "Hello"


async def test_a_429_that_stays_is_a_rate_limit_error_with_the_workers_retry_after(
    cluster: Cluster, claude: AsyncAnthropic
) -> None:
    cluster.prefill.refusal_headers = {"retry-after": "7"}
    cluster.prefill.faults.append(429)
    with pytest.raises(anthropic.RateLimitError) as caught:
        await claude.with_options(max_retries=0).messages.create(**BODY)
    assert caught.value.response.headers["retry-after"] == "7"
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "prefill-0 says 429"},
    }


@pytest.mark.parametrize(
    ("fault", "kind", "name"),
    [
        (400, anthropic.BadRequestError, "invalid_request_error"),
        (404, anthropic.NotFoundError, "not_found_error"),
        (422, anthropic.UnprocessableEntityError, "invalid_request_error"),
        (500, anthropic.InternalServerError, "api_error"),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_errors_are_the_clients_exception_classes(
    cluster: Cluster,
    claude: AsyncAnthropic,
    fault: int,
    kind: type[anthropic.APIStatusError],
    name: str,
    is_stream: bool,
) -> None:
    cluster.decode.faults.append(fault)
    with pytest.raises(kind) as caught:
        await claude.with_options(max_retries=0).messages.create(**BODY, stream=is_stream)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == name


async def test_the_routers_own_errors_are_too(cluster: Cluster, claude: AsyncAnthropic) -> None:
    claude = claude.with_options(max_retries=0)
    with pytest.raises(anthropic.NotFoundError, match="gpt-9"):
        await claude.messages.create(**BODY | {"model": "gpt-9"})
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        await claude.messages.create(**BODY | {"max_tokens": 0})
    await cluster.keep_only()
    with pytest.raises(anthropic.InternalServerError, match="No decode worker is ready"):
        await claude.messages.create(**BODY)


@pytest.mark.parametrize("fault", ["break_midway", "break_in_event", "no_done"])
async def test_a_stream_that_breaks_raises_and_is_not_taken_for_a_whole_one(
    cluster: Cluster, claude: AsyncAnthropic, fault: str
) -> None:
    cluster.decode.faults.append(fault)
    with pytest.raises(anthropic.APIStatusError, match="ended before"):
        async with claude.messages.stream(**BODY) as stream:
            await stream.get_final_message()


class TestApiKeys:
    """With keys configured, a client sends its key or a token."""

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"api_keys": ["right"]}

    async def test_a_wrong_key_is_an_authentication_error(self, claude: AsyncAnthropic) -> None:
        with pytest.raises(anthropic.AuthenticationError):
            await claude.messages.create(**BODY)

    @pytest.mark.parametrize("given", [{"api_key": "right"}, {"auth_token": "right"}])
    async def test_a_right_one_is_served_in_either_form(self, cluster: Cluster, given: dict[str, str]) -> None:
        async with AsyncAnthropic(base_url=str(cluster.http.base_url), **given) as client:  # type: ignore[arg-type]
            assert await client.messages.create(**BODY)
            assert (await client.messages.count_tokens(model=MODEL, messages=BODY["messages"])).input_tokens == 3
            assert [model.id async for model in client.models.list()] == [MODEL]

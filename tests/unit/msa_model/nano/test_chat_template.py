"""The chat template, rendered: every role, tools, reasoning, and how an answer is begun."""

from pathlib import Path
from typing import Any

import jinja2
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.reasoning.minimax_m3_reasoning_parser import MiniMaxM3ReasoningParser

from msa_model.nano.tokenizer import train_tokenizer, write_tokenizer

ASK = [{"role": "user", "content": "Hi"}]
OPENING = "]~!b[]~b]system\nYou are a helpful assistant.[e~[\n]~b]user\nHi[e~[\n"
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, train_tokenizer())
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def render(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], **options: Any) -> str:
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    assert isinstance(text, str)
    return text


def test_a_question_gets_a_system_turn_and_an_opened_answer(tokenizer: PreTrainedTokenizerBase) -> None:
    assert render(tokenizer, ASK, add_generation_prompt=True) == OPENING + "]~b]ai\n"
    assert render(tokenizer, ASK) == OPENING


@pytest.mark.parametrize(("mode", "tag"), [("enabled", "<mm:think>"), ("disabled", "</mm:think>"), ("adaptive", "")])
def test_thinking_mode_decides_how_the_answer_begins(tokenizer: PreTrainedTokenizerBase, mode: str, tag: str) -> None:
    prompt = render(tokenizer, ASK, add_generation_prompt=True, thinking_mode=mode)
    assert prompt == f"{OPENING}]~b]ai\n{tag}"


def test_a_whole_conversation_with_tools(tokenizer: PreTrainedTokenizerBase) -> None:
    arguments = {"city": "Ulm", "days": 2, "opts": {"wind": True}, "at": ["am", "pm"]}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Old"}, {"type": "text", "text": " question"}]},
        {"role": "assistant", "content": "Old answer", "reasoning": "forgotten"},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "I must look.",
            "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": arguments}}],
        },
        {"role": "tool", "content": "sunny"},
        {"role": "tool", "content": "calm"},
    ]
    ns = "]<]minimax[>["
    assert render(tokenizer, messages, tools=[WEATHER], add_generation_prompt=True) == (
        "]~!b[]~b]system\nBe brief.\n\n# Tools\nYou may call one or more tools. Their JSON schemas:\n<tools>\n"
        '<tool>{"name": "weather", '
        '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}</tool>\n'
        "</tools>\n\nA call is written so:\n"
        f'{ns}<tool_call>\n{ns}<invoke name="tool-name">\n{ns}<argument>value{ns}</argument>\n'
        f"{ns}</invoke>\n{ns}</tool_call>[e~[\n"
        "]~b]user\nOld question[e~[\n"
        "]~b]ai\nOld answer[e~[\n"
        "]~b]user\nWeather?[e~[\n"
        "]~b]ai\n<mm:think>I must look.</mm:think>"
        f'{ns}<tool_call>\n{ns}<invoke name="weather">\n{ns}<city>Ulm{ns}</city>\n{ns}<days>2{ns}</days>\n'
        f"{ns}<opts>{ns}<wind>true{ns}</wind>{ns}</opts>\n"
        f"{ns}<at>{ns}<item>am{ns}</item>{ns}<item>pm{ns}</item>{ns}</at>\n"
        f"{ns}</invoke>\n{ns}</tool_call>[e~[\n"
        "]~b]tool\n<response>sunny</response>\n<response>calm</response>[e~[\n"
        "]~b]ai\n"
    )


def test_content_that_is_no_text_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]
    with pytest.raises(jinja2.TemplateError, match="text only"):
        render(tokenizer, image)


def test_an_unknown_role_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(jinja2.TemplateError, match="Unknown role narrator"):
        render(tokenizer, [{"role": "narrator", "content": "Once"}])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (None, "the water")),
        ({"thinking_mode": "disabled"}, (None, "the water")),
        ({"thinking_mode": "enabled"}, ("the water", None)),
    ],
)
def test_vllms_parser_shows_an_untagged_answer_as_content_unless_thinking_was_asked_for(
    tokenizer: PreTrainedTokenizerBase, options: dict[str, str], expected: tuple[str | None, str | None]
) -> None:
    parser = MiniMaxM3ReasoningParser(tokenizer, chat_template_kwargs=options)
    request = ChatCompletionRequest(messages=ASK, model="nano")
    assert parser.extract_reasoning("the water", request) == expected

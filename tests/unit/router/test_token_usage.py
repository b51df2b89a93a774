"""Tokens of an answer, from its last bytes, in every API's words."""

import pytest

from router.token_usage import TokenUsage, read_usage

CHAT = b'{"choices":[],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2,"details":{"a":1}}}'


@pytest.mark.parametrize(
    "end",
    [
        CHAT,
        b"data: " + CHAT + b"\n\ndata: [DONE]\n\n",
        b'{"usage": null, "x": {"usage": {"input_tokens": 7, "output_tokens": 2}}}',
        b'event: message_delta\ndata: {"usage":{"output_tokens":2,"input_tokens":7}}\n\nevent: message_stop\n\n',
        '{"text":"é\\"usage\\":1","usage":{"prompt_tokens":7,"completion_tokens":2},"kv":null}'.encode(),
    ],
)
def test_the_last_usage_counts(end: bytes) -> None:
    assert read_usage(end) == TokenUsage(prompt=7, output=2)


def test_embeddings_have_no_output() -> None:
    assert read_usage(b'{"data":[],"usage":{"prompt_tokens":7,"total_tokens":7}}') == TokenUsage(7, 0)


@pytest.mark.parametrize(
    "end", [b"", b"data: [DONE]\n\n", b'{"usage":null}', b'{"usage":', b'{"usage":{"prompt_tokens":"7"}}']
)
def test_what_cannot_be_understood_is_no_usage(end: bytes) -> None:
    assert read_usage(end) is None

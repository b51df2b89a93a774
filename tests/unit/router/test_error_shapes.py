"""Each API's clients find an error where they look for it."""

import json
from typing import Any

import pytest

from router.error_shapes import ANTHROPIC_ERRORS, OPENAI_ERRORS, RESPONSES_ERRORS, ErrorShape, status_in
from router.worker_client import WorkerAnswer
from wire.errors import (
    BadRequest,
    DeadlineExceeded,
    NotFound,
    NoWorker,
    Overloaded,
    PayloadTooLarge,
    ServingError,
    Unauthorized,
    UpstreamError,
)

ERROR = BadRequest("`n` is wrong.", param="n", code="wrong")


def data_of(event: bytes) -> Any:
    assert event.endswith(b"\n\n")
    return json.loads(event.partition(b"data: ")[2])


def test_openai_has_message_type_param_and_code() -> None:
    body = {"message": "`n` is wrong.", "type": "invalid_request_error", "param": "n", "code": "wrong"}
    assert json.loads(OPENAI_ERRORS.whole(ERROR)) == {"error": body}
    assert data_of(OPENAI_ERRORS.last_event(ERROR, b"")) == {"error": body}
    assert OPENAI_ERRORS.last_event(ERROR, b"").startswith(b"data: ")


@pytest.mark.parametrize(
    ("before", "number"),
    [
        (b"", 0),
        (b'event: x\ndata: {"type":"x","sequence_number":6,"a":1}\n\n', 7),
        (b'event: x\ndata: {"type":"x","sequence_number": 41}\n\n', 42),
        (b'data: {"sequence_number":1}\n\ndata: {"sequence_number":2}\n\n', 3),
        (b'data: {"sequence_number":"x"}\n\n', 0),
    ],
)
def test_a_responses_stream_ends_with_the_next_number_in_its_sequence(before: bytes, number: int) -> None:
    event = RESPONSES_ERRORS.last_event(ERROR, before)
    assert event.startswith(b"event: error\n")
    data = data_of(event)
    assert (data["type"], data["sequence_number"]) == ("error", number)
    assert (data["message"], data["code"], data["param"]) == ("`n` is wrong.", "wrong", "n")
    assert data["error"] == ERROR.openai_body()["error"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("x"), "invalid_request_error"),
        (Unauthorized("x"), "authentication_error"),
        (NotFound("x"), "not_found_error"),
        (PayloadTooLarge("x"), "request_too_large"),
        (Overloaded("x"), "rate_limit_error"),
        (ServingError("x"), "api_error"),
        (UpstreamError("x"), "api_error"),
        (NoWorker("x"), "overloaded_error"),
        (DeadlineExceeded("x"), "timeout_error"),
    ],
)
def test_anthropic_has_its_own_type_for_each_status(error: ServingError, kind: str) -> None:
    expected = {"type": "error", "error": {"type": kind, "message": "x"}}
    assert json.loads(ANTHROPIC_ERRORS.whole(error)) == expected
    assert ANTHROPIC_ERRORS.last_event(error, b"").startswith(b"event: error\n")
    assert data_of(ANTHROPIC_ERRORS.last_event(error, b"")) == expected


REFUSAL = WorkerAnswer(
    404, {}, b'{"error":{"message":"no\\nsuch",\n"type":"NotFoundError","param":"model","code":404}}\n'
)
NAMELESS = WorkerAnswer(422, {}, b"<html>\n\n</html>")


def test_a_refusal_as_the_only_event_of_a_stream_is_in_openais_shape_the_workers_own() -> None:
    event = OPENAI_ERRORS.only_event(REFUSAL)
    assert event.startswith(b"data: ")
    assert event.count(b"\n") == 2
    assert data_of(event) == json.loads(REFUSAL.body)


def test_a_refusal_as_the_only_event_is_the_first_in_a_responses_sequence() -> None:
    event = RESPONSES_ERRORS.only_event(REFUSAL)
    assert event.startswith(b"event: error\n")
    said = data_of(event)
    assert (said["type"], said["sequence_number"], said["message"], said["code"]) == ("error", 0, "no\nsuch", "404")
    assert said["error"] == {"message": "no\nsuch", "type": "NotFoundError", "param": "model", "code": 404}
    assert data_of(RESPONSES_ERRORS.only_event(NAMELESS))["message"] == "The worker refused the request."


def test_a_refusal_as_the_only_event_has_anthropics_type_for_its_status() -> None:
    event = ANTHROPIC_ERRORS.only_event(REFUSAL)
    assert event.startswith(b"event: error\n")
    assert data_of(event) == {"type": "error", "error": {"type": "not_found_error", "message": "no\nsuch"}}


OF_VLLM = b'{"error":{"message":"too long","type":"BadRequestError","param":"prompt","code":400}}'


@pytest.mark.parametrize("shape", [OPENAI_ERRORS, RESPONSES_ERRORS])
def test_a_workers_refusal_is_openais_already(shape: ErrorShape) -> None:
    assert shape.of_worker(WorkerAnswer(400, {}, OF_VLLM)) is OF_VLLM


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, OF_VLLM, "invalid_request_error", "too long"),
        (422, b'{"type":"error","error":{"type":"x","message":"y"}}', "invalid_request_error", "y"),
        (429, b'{"error":{"message":"busy"}}', "rate_limit_error", "busy"),
        (404, b"<html>", "not_found_error", "The worker refused the request."),
        (400, b'{"error":{"message":7}}', "invalid_request_error", "The worker refused the request."),
        (400, b"[]", "invalid_request_error", "The worker refused the request."),
    ],
)
def test_a_workers_refusal_becomes_anthropics(status: int, body: bytes, kind: str, message: str) -> None:
    shaped = json.loads(ANTHROPIC_ERRORS.of_worker(WorkerAnswer(status, {}, body)))
    assert shaped == {"type": "error", "error": {"type": kind, "message": message}}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (OF_VLLM, 400),
        (b'{"error":{"code":503}}', 503),
        (b'{"error":{"code":200}}', 500),
        (b'{"error":{"code":"x","type":"rate_limit_error"}}', 429),
        (b'{"type":"error","error":{"type":"invalid_request_error"}}', 400),
        (b'{"error":{"type":"internal_error"}}', 500),
        (b'{"error":{"type":["x"]}}', 500),
        (b"{", 500),
        (b"", 500),
    ],
)
def test_an_error_stands_for_a_status(body: bytes, status: int) -> None:
    assert status_in(body) == status


@pytest.mark.parametrize("body", [b'{"detail":"Not Found"}', b"<html>", b"", b'{"error":{}}'])
def test_a_refusal_that_has_no_shape_gets_one(body: bytes) -> None:
    error = json.loads(OPENAI_ERRORS.of_worker(WorkerAnswer(404, {}, body)))["error"]
    assert error["message"]
    assert (error["type"], error["code"]) == ("not_found_error", 404)

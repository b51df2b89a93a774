"""Errors carry the HTTP status and the OpenAI shape that clients get."""

from wire.errors import BadRequest, Conflict, LeaseExpired, NoWorker, ServingError, TransferError


def test_errors_carry_their_status_and_the_openai_shape() -> None:
    error = BadRequest("max_tokens must be at least 1", param="max_tokens")
    assert error.openai_body() == {
        "error": {
            "message": "max_tokens must be at least 1",
            "type": "invalid_request_error",
            "param": "max_tokens",
            "code": 400,
        }
    }
    assert (NoWorker("").status, Conflict("").status) == (503, 409)
    assert issubclass(LeaseExpired, TransferError)
    assert issubclass(TransferError, ServingError)

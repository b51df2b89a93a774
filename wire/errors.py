"""The exception tree of the whole system, and its one mapping to OpenAI-shaped HTTP errors.

    ServingError                500
    |- BadRequest               400  the request can't be served as written; names the field in ``param``
    |- Unauthorized             401
    |- NotFound                 404  unknown model or route
    |- MethodNotAllowed         405
    |- RequestTimeout           408  the client was too slow with its request
    |- Conflict                 409  a worker that none of those it would meet can pair with
    |- PayloadTooLarge          413
    |- HeadTooLarge             431  request line and headers
    |- Overloaded               429
    |- NoWorker                 503  no usable worker of a role
    |- UpstreamError            502  a worker failed or answered nonsense
    |- DeadlineExceeded         504
    `- TransferError            502  KV did not cross
       |- HandshakeMismatch
       |- LeaseExpired
       `- TransferFailed

Messages carry no prompt text. Expected outcomes (no free block, transfer pending) are return values, not exceptions.
"""

from typing import Any, ClassVar


class ServingError(Exception):
    """Base of every error that tandem raises on a request's path.

    ``request_id`` and ``stage`` (admit, queue, select, prefill, transfer, decode, relay) say where it happened;
    ``retry_after_s``, when it is worth trying again.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        request_id: str = "",
        stage: str = "",
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.code = message, param, code
        self.request_id, self.stage, self.retry_after_s = request_id, stage, retry_after_s

    def openai_body(self) -> dict[str, Any]:
        """The OpenAI error object: ``{"error": {"message", "type", "param", "code"}}``."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code if self.code is not None else self.status,
            }
        }


class BadRequest(ServingError):
    status, type = 400, "invalid_request_error"


class Unauthorized(ServingError):
    status, type = 401, "authentication_error"


class NotFound(ServingError):
    status, type = 404, "not_found_error"


class MethodNotAllowed(ServingError):
    status, type = 405, "invalid_request_error"


class RequestTimeout(ServingError):
    status, type = 408, "timeout_error"


class Conflict(ServingError):
    status, type = 409, "conflict_error"


class PayloadTooLarge(ServingError):
    status, type = 413, "invalid_request_error"


class HeadTooLarge(ServingError):
    status, type = 431, "invalid_request_error"


class Overloaded(ServingError):
    status, type = 429, "rate_limit_error"


class NoWorker(ServingError):
    status, type = 503, "service_unavailable_error"


class UpstreamError(ServingError):
    status, type = 502, "upstream_error"


class DeadlineExceeded(ServingError):
    status, type = 504, "timeout_error"


class TransferError(ServingError):
    status, type = 502, "kv_transfer_error"


class HandshakeMismatch(TransferError):
    """The two sides' rows, versions or identities do not fit; retrying the same pair can't help."""


class LeaseExpired(TransferError):
    """Prefill no longer promises the blocks; they may hold another request's KV."""


class TransferFailed(TransferError):
    """The read was posted and failed, or the peer is gone."""

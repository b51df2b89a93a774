"""What the application's ordinary routes answer when something is wrong; generating endpoints answer themselves."""

from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from router.endpoints import Endpoint
from router.error_shapes import OPENAI_ERRORS
from wire.errors import BadRequest, MethodNotAllowed, NotFound, ServingError

_SHAPES = {endpoint.url_path: endpoint.errors for endpoint in Endpoint}


def add_error_handlers(app: FastAPI) -> None:
    """Have every error of ``app`` answered in the shape of the path's API."""

    async def on_serving_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ServingError)
        return _error_response(request, error)

    async def on_validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"] if part != "body")
        return _error_response(request, BadRequest(f"{where or 'body'}: {fault['msg']}", param=where or None))

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = {404: NotFound, 405: MethodNotAllowed}.get(error.status_code, BadRequest)
        return _error_response(request, kind(str(error.detail)), error.headers)

    async def on_fault(request: Request, error: Exception) -> Response:
        return _error_response(request, ServingError("Internal error."))

    app.add_exception_handler(ServingError, on_serving_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_fault)


def _error_response(request: Request, error: ServingError, headers: Mapping[str, str] | None = None) -> Response:
    shape = _SHAPES.get(request.url.path, OPENAI_ERRORS)
    return Response(shape.whole(error), error.status, headers, media_type="application/json")

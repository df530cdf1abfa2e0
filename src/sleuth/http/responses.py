"""JSON responses: encoding, and problems reported as a status with a one-line `detail`."""

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError, to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from sleuth.errors import SleuthError, UserError

if TYPE_CHECKING:
    from starlette.applications import Starlette

JSON = "application/json"
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that disconnected; recorded in metrics, never sent


class HttpProblem(SleuthError):
    """Refuses a request with this status; the message is sent to the client."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers


Respond = Callable[[HttpProblem], Response]


def encode_json(value: object) -> bytes:
    """Encode as strict JSON: NaN and infinities become null, lone surrogates become escapes."""
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:
        finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
        return json.dumps(finite, allow_nan=False).encode()


def problem_response(problem: HttpProblem) -> Response:
    """Return `{"detail": message}` with the status and headers of the problem."""
    return Response(encode_json({"detail": str(problem)}), problem.status, problem.headers, media_type=JSON)


def add_problem_handlers(app: "Starlette", respond: Respond = problem_response, *, hint: str = "") -> None:
    """Respond to every exception with a problem; `hint` is appended to the detail of a 404."""

    async def on_problem(_: Request, problem: HttpProblem) -> Response:
        return respond(problem)

    async def on_disconnect(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def on_user_error(_: Request, error: UserError) -> Response:
        return respond(HttpProblem(503, str(error)))

    async def on_http_exception(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        details = {
            404: f"no such path: {request.url.path[:200]!r}{hint}",
            405: f"method {request.method} is not allowed here; use {headers.get('Allow', 'another method')}",
        }
        return respond(HttpProblem(error.status_code, details.get(error.status_code, str(error.detail)), headers))

    async def on_failure(_: Request, error: Exception) -> Response:
        return respond(HttpProblem(500, f"internal error ({type(error).__name__}); see the server's log"))

    handlers: dict[type[Exception], Callable[[Request, Any], Awaitable[Response]]] = {
        HttpProblem: on_problem,
        ClientDisconnect: on_disconnect,
        UserError: on_user_error,
        HTTPException: on_http_exception,
        Exception: on_failure,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)

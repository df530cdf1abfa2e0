"""Answers to requests that are not served, in OpenAI's form: a message, its type, the field and a code."""

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from sleuth.errors import UserError
from sleuth.retrieval.service.answers import encoded
from sleuth.retrieval.service.limits import Refused
from sleuth.retrieval.service.metrics import CLIENT_GONE

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


class Denied(Refused):
    """A request that is not served: `param` names the field at fault, `code` the fault, for programs."""

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, sentence, headers)
        self.param = param
        self.code = code


def told(error: Refused) -> dict[str, Any]:
    """The body of a refusal."""
    param, code = (error.param, error.code) if isinstance(error, Denied) else (None, None)
    usual = "server_error" if error.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": str(error),
            "type": TYPES.get(error.status, usual),
            "param": param,
            "code": code or CODES.get(error.status),
        }
    }


def problem(error: Refused, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encoded(told(error)), error.status, headers or error.headers, media_type="application/json")


def unchecked(status: int, sentence: str) -> Response:
    """The answer to a request that does not pass the check of all servers."""
    return problem(Denied(status, sentence))


async def refused(_: Request, error: Refused) -> Response:
    return problem(error)


def no_token(sentence: str) -> bytes:
    """The body for those who show no token, or a wrong one."""
    return encoded(told(Denied(401, sentence)))


async def out_of_order(_: Request, error: UserError) -> Response:
    """Something that whoever runs the server can put right: an index that changed under it, say."""
    return problem(Denied(503, str(error)))


async def left(_: Request, error: ClientDisconnect) -> Response:
    """Nobody reads it; the figures do."""
    del error
    return Response(status_code=CLIENT_GONE)


async def not_there(request: Request, error: HTTPException) -> Response:
    """A path or a method that the server has not."""
    headers = dict(error.headers or {})
    sentences = {
        404: f"there is no path {request.url.path!r} here; questions go to /v1/chat/completions",
        405: f"{request.method} is not answered here; send {headers.get('Allow', 'another method')}",
    }
    return problem(Denied(error.status_code, sentences.get(error.status_code, str(error.detail))), headers)


async def failed(_: Request, error: Exception) -> Response:
    return problem(Denied(500, f"the server failed at this request ({type(error).__name__}); its log says where"))

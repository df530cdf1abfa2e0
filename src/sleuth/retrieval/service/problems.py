"""Answers to requests that are not served: a status, and one sentence as `detail`."""

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from sleuth.errors import UserError
from sleuth.retrieval.service.answers import encoded
from sleuth.retrieval.service.limits import Refused
from sleuth.retrieval.service.metrics import CLIENT_GONE


def problem(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    return Response(encoded({"detail": sentence}), status, headers, media_type="application/json")


async def refused(_: Request, error: Refused) -> Response:
    return problem(error.status, str(error), error.headers)


async def out_of_order(_: Request, error: UserError) -> Response:
    """Something that whoever runs the server can put right: a file that changed under it, say."""
    return problem(503, str(error))


async def left(_: Request, error: ClientDisconnect) -> Response:
    """Nobody reads it; the figures do."""
    del error
    return Response(status_code=CLIENT_GONE)


async def not_there(request: Request, error: HTTPException) -> Response:
    """A path or a method that the server has not."""
    headers = dict(error.headers or {})
    sentences = {
        404: f"there is no path {request.url.path!r} here; /docs lists those there are",
        405: f"{request.method} is not answered here; send {headers.get('Allow', 'another method')}",
    }
    return problem(error.status_code, sentences.get(error.status_code, str(error.detail)), headers)


async def failed(_: Request, error: Exception) -> Response:
    return problem(500, f"the server failed at this request ({type(error).__name__}); its log says where")

"""A short way to the one path that is called thousands of times a second."""

from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sleuth.retrieval.service.limits import Refused
from sleuth.retrieval.service.problems import left, refused


class Direct:
    """An application of which POSTs to `path` go straight to `answer`.

    They are answered as by its route, which is there for the OpenAPI; routing and resolving cost more than a search.
    """

    def __init__(self, app: ASGIApp, path: str, answer: Callable[[Request], Awaitable[Response]]) -> None:
        self._app = app
        self._path = path
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self._path or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except Refused as error:
            response = await refused(request, error)
        except ClientDisconnect as error:
            response = await left(request, error)
        return await response(scope, receive, send)

"""The door of a server: a bearer token on every path but the one that says it is alive."""

import hmac
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from sleuth.retrieval.service.answers import encoded

OPEN = frozenset({"/healthz"})
MISSING = "a bearer token is needed; send it in the header: Authorization: Bearer TOKEN"
WRONG = "the bearer token is not the one of this server"


def _detail(sentence: str) -> bytes:
    return encoded({"detail": sentence})


class Guarded:
    """An application that answers only those who know its token; `refusal` is the body that others get."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        *,
        open_paths: frozenset[str] = OPEN,
        refusal: Callable[[str], bytes] = _detail,
    ) -> None:
        self._app = app
        self._token = token.encode()
        self._open = open_paths
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open:
            return await self._app(scope, receive, send)
        given = _bearer(scope)
        # Compared in constant time: how long a refusal takes tells nothing of the token.
        if given is not None and hmac.compare_digest(given, self._token):
            return await self._app(scope, receive, send)
        return await _refuse(send, self._refusal(MISSING if given is None else WRONG))


def _bearer(scope: Scope) -> bytes | None:
    """The token a client shows; None where it shows none."""
    for name, value in scope["headers"]:
        kind, _, token = value.partition(b" ")
        if name == b"authorization" and kind.lower() == b"bearer":
            return bytes(token.strip())
    return None


async def _refuse(send: Send, body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"www-authenticate", b'Bearer realm="sleuth"'),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})

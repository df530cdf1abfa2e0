"""The door of the viewer: who may ask, and what a browser may do with the answers.

A page of another site can make a browser ask this server under a name of its own that leads here (DNS rebinding), and
would then read the answers; so a name in the Host header has to be a known one. A bare address cannot be such a name.
"""

from collections.abc import Collection
from ipaddress import ip_address

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sleuth.retrieval.service.answers import encoded

# Plotly makes styles by script; with images and requests of this server only, a style can carry nothing out.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
OWN_PAGES = frozenset({b"same-origin", b"none"})
FOREIGN = "this server is not called {}; use the address it printed, or allow the name with --allow-host"
CROSS = "pages of other sites may not ask here"


class Door:
    """An application that is reached under known names only, and whose answers say what they may be used for."""

    def __init__(self, app: ASGIApp, names: Collection[str] = ()) -> None:
        self._app = app
        self._names = frozenset({"localhost", *(name.lower().rstrip(".") for name in names)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = scope["headers"]
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self.knows(hosts[0]):
            return await _refuse(send, 421, FOREIGN.format(repr(hosts[0][:80]) if hosts else "by no name"))
        if scope["path"].startswith("/api/") and not _own(headers):
            return await _refuse(send, 403, CROSS)
        return await self._app(scope, receive, _marked(send))

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server: an address, localhost, or a name that was allowed."""
        name = _without_port(host).lower().rstrip(".")
        try:
            ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name in self._names
        return True


def _own(headers: list[tuple[bytes, bytes]]) -> bool:
    """False where a browser says that a page of another site asks; programs say nothing."""
    sites = [value for name, value in headers if name == b"sec-fetch-site"]
    hosts = [value.lower() for name, value in headers if name == b"host"]
    origins = [value.lower().partition(b"://")[2] for name, value in headers if name == b"origin"]
    return all(site in OWN_PAGES for site in sites) and all(origin in hosts for origin in origins)


def _without_port(host: str) -> str:
    before, colon, port = host.rpartition(":")
    return before if colon and port.isdigit() and (host.startswith("[") or ":" not in before) else host


def _marked(send: Send) -> Send:
    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        await send(message)

    return answer


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = encoded({"detail": sentence})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    marked = _marked(send)
    await marked({"type": "http.response.start", "status": status, "headers": headers})
    await marked({"type": "http.response.body", "body": body})

"""Which requests a server accepts at all: the check that every server here shares.

A page of another site can make a browser send requests to this server under a name of its own that resolves here (DNS
rebinding), and would then read the answers. So the Host header has to be a known name or a bare address, which cannot
be such a name; a page of another origin is refused; and a body has to be declared as JSON, which a page cannot send to
another origin without asking first.
"""

import socket
from collections.abc import Callable, Collection
from ipaddress import ip_address

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sleuth.retrieval.service.problems import problem

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
OWN_PAGES = frozenset({"same-origin", "none"})

Refusal = Callable[[int, str], Response]


class RequestCheck:
    """An application behind checks of Host, Origin and Content-Type; `refusal` makes the answer to what does not pass.

    `names` are the hosts the server answers to besides localhost and bare addresses; None accepts every name, for a
    server behind a token, which no page knows. Pages served by `origins` may ask too.
    """

    def __init__(
        self,
        app: ASGIApp,
        names: Collection[str] | None,
        *,
        origins: Collection[str] = (),
        refusal: Refusal = problem,
    ) -> None:
        self._app = app
        self._names = None if names is None else frozenset({"localhost", *map(_plain, names)}) - {""}
        self._origins = frozenset(map(_plain, origins))
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._problem(scope) if scope["type"] == "http" else None
        await (self._app if found is None else self._refusal(*found))(scope, receive, send)

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server."""
        name = _plain(_without_port(host))
        return self._names is None or name in self._names or _is_address(name)

    def _problem(self, scope: Scope) -> tuple[int, str] | None:
        """Status and sentence of the refusal; None of a request that is accepted."""
        headers = [(name, value.decode("latin-1")) for name, value in scope["headers"]]
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self.knows(hosts[0]):
            called = repr(hosts[0][:80]) if hosts else "by no name"
            return 421, f"this server is not called {called}; use the address it printed, or allow it with --allow-host"
        if not self._own_page(scope["method"], hosts[0], headers):
            return 403, "pages of other sites may not ask here"
        said = dict(headers)
        kind, length = said.get(b"content-type", ""), said.get(b"content-length", "0")
        has_body = kind or length != "0" or b"transfer-encoding" in said
        if scope["method"] == "POST" and has_body and kind.partition(";")[0].strip().lower() != "application/json":
            shown = repr(kind[:80]) if kind else "of no type"
            return 415, f"the body is {shown}; send the header content-type: application/json"
        return None

    def _own_page(self, method: str, host: str, headers: list[tuple[bytes, str]]) -> bool:
        """False where a browser says that a page of another site asks; programs say nothing."""
        said = {name: value.lower() for name, value in headers if name.startswith((b"sec-fetch-", b"origin"))}
        origin = said.get(b"origin", "").partition("://")[2]
        if b"origin" in said and origin != host.lower() and _without_port(origin) not in self._origins:
            return False
        followed_link = method == "GET" and said.get(b"sec-fetch-mode") == "navigate"
        return followed_link or said.get(b"sec-fetch-site", "none") in OWN_PAGES


def server_names(host: str, allowed: Collection[str] = ()) -> list[str]:
    """The names of a server that listens on `host`: that one, those of this machine where others get in, `allowed`."""
    machine = [] if host in LOOPBACK else [socket.gethostname(), socket.getfqdn()]
    return [host, *machine, *allowed]


def _plain(name: str) -> str:
    return name.lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _without_port(host: str) -> str:
    before, colon, port = host.rpartition(":")
    return before if colon and port.isdigit() and (host.startswith("[") or ":" not in before) else host

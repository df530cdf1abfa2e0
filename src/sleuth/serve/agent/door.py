"""Who is let in without a token: on a machine of one's own only those who call it by its own names."""

from starlette.types import ASGIApp, Receive, Scope, Send

from sleuth.serve.agent.problems import Denied, problem

OWN = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Local:
    """An application on loopback: a page of another site, which can give this address a name, does not get in."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = next((value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"host"), "")
        if scope["type"] != "http" or _host(named) in OWN:
            return await self._app(scope, receive, send)
        sentence = f"this server does not answer to the name {_host(named)!r}; call it 127.0.0.1, or give it a token"
        return await problem(Denied(403, sentence))(scope, receive, send)


def _host(named: str) -> str:
    """The host of a Host header, without its port."""
    return named[: named.index("]") + 1] if named.startswith("[") and "]" in named else named.partition(":")[0].lower()

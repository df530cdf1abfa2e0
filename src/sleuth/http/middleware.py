"""Middleware shared by all servers: checks of Host, Origin and Content-Type, bearer tokens, Prometheus metrics.

DNS rebinding lets a page of another site send requests here under its own host name and read the responses. Therefore
the Host header must be a known name or an IP address, browser requests from other origins are refused, and a body must
be declared as JSON, which a page cannot send to another origin without a preflight request.
"""

import hmac
import socket
from collections.abc import Callable, Collection
from ipaddress import ip_address
from time import perf_counter

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sleuth.http.responses import CLIENT_CLOSED_REQUEST, JSON, HttpProblem, Respond, problem_response

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class RequestCheck:
    """Middleware that refuses requests with an unknown Host, a foreign Origin or a body that is not JSON.

    `names` are accepted as Host besides localhost and IP addresses; None accepts any Host, for servers that require a
    token. Pages from `origins` are accepted too. Without `json_only`, a body may have any Content-Type, for servers
    whose every request has a secret.
    """

    def __init__(
        self,
        app: ASGIApp,
        names: Collection[str] | None,
        *,
        origins: Collection[str] = (),
        json_only: bool = True,
        respond: Respond = problem_response,
    ) -> None:
        self._app, self._json_only = app, json_only
        self._names = None if names is None else frozenset({"localhost", *map(_normalize, names)}) - {""}
        self._origins = frozenset(map(_normalize, origins))
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope) if scope["type"] == "http" else None
        await (self._app if problem is None else self._respond(problem))(scope, receive, send)

    def accepts_host(self, host: str) -> bool:
        """Whether a Host header names this server."""
        name = _normalize(_strip_port(host))
        if self._names is None or name in self._names:
            return True
        try:
            ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True

    def _problem(self, scope: Scope) -> HttpProblem | None:
        headers = [(name, value.decode("latin-1")) for name, value in scope["headers"]]
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self.accepts_host(hosts[0]):
            shown = repr(hosts[0][:80]) if hosts else "missing"
            return HttpProblem(
                421, f"the Host header is {shown}; use the printed address, or allow the name with --allow-host"
            )
        if not self._is_own_site(scope["method"], hosts[0], headers):
            return HttpProblem(403, "requests from pages of other sites are refused")
        if not self._json_only:
            return None
        fields = dict(headers)
        content_type, length = fields.get(b"content-type", ""), fields.get(b"content-length", "0")
        has_body = content_type or length != "0" or b"transfer-encoding" in fields
        if scope["method"] == "POST" and has_body and content_type.partition(";")[0].strip().lower() != JSON:
            shown = repr(content_type[:80]) if content_type else "missing"
            return HttpProblem(415, f"the Content-Type header is {shown}; expected {JSON}")
        return None

    def _is_own_site(self, method: str, host: str, headers: list[tuple[bytes, str]]) -> bool:
        """Return False if the browser headers name another site as the origin; other programs send no such headers."""
        sent = {name: value.lower() for name, value in headers if name.startswith((b"sec-fetch-", b"origin"))}
        origin = sent.get(b"origin", "").partition("://")[2]
        if b"origin" in sent and origin != host.lower() and _strip_port(origin) not in self._origins:
            return False
        is_navigation = method == "GET" and sent.get(b"sec-fetch-mode") == "navigate"
        return is_navigation or sent.get(b"sec-fetch-site", "none") in ("same-origin", "none")


class BearerAuth:
    """Middleware that requires a bearer token on all paths except `public`."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        *,
        public: Collection[str] = ("/healthz",),
        respond: Respond = problem_response,
    ) -> None:
        self._app, self._token = app, token.encode()
        self._public, self._respond = frozenset(public), respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._public:
            return await self._app(scope, receive, send)
        credentials = [value.partition(b" ") for name, value in scope["headers"] if name == b"authorization"]
        token = next((bytes(token.strip()) for scheme, _, token in credentials if scheme.lower() == b"bearer"), None)
        # Compared in constant time, so that timing does not leak the token.
        if token is not None and hmac.compare_digest(token, self._token):
            return await self._app(scope, receive, send)
        required = "a bearer token is required; send the header Authorization: Bearer TOKEN"
        detail = required if token is None else "the bearer token is wrong"
        refusal = HttpProblem(401, detail, {"www-authenticate": 'Bearer realm="sleuth"'})
        return await self._respond(refusal)(scope, receive, send)


class ServerMetrics:
    """Prometheus metrics of one server, in its own registry so that two servers in a process stay separate."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        meaning = "Requests answered, by path and status."
        self.requests = Counter("sleuth_requests", meaning, ["path", "status"], registry=self.registry)
        meaning = "Time from the first byte of a request to the last byte of its response."
        self.seconds = Histogram("sleuth_request_seconds", meaning, ["path"], buckets=SECONDS, registry=self.registry)

    def add_gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """Export a gauge that is read at every scrape."""
        Gauge(name, meaning, registry=self.registry).set_function(value)

    def response(self) -> Response:
        """Return all metrics in the Prometheus text format."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)


class MetricsMiddleware:
    """Count requests by path; paths not in `paths` are counted as "other"."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, paths: frozenset[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = perf_counter()
        status = CLIENT_CLOSED_REQUEST

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_record)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.seconds.labels(path).observe(perf_counter() - started)


def server_names(host: str, allowed: Collection[str] = ()) -> list[str]:
    """Return the host names of a server bound to `host`, with this machine's names unless `host` is loopback."""
    machine = [] if host in LOOPBACK else [socket.gethostname(), socket.getfqdn()]
    return [host, *machine, *allowed]


def _normalize(name: str) -> str:
    return name.lower().rstrip(".")


def _strip_port(host: str) -> str:
    before, colon, port = host.rpartition(":")
    return before if colon and port.isdigit() and (host.startswith("[") or ":" not in before) else host

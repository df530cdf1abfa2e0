"""Run an ASGI application with uvicorn: bind a port, bound request heads in size and time, shut down gracefully."""

import asyncio
import errno
import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sleuth.errors import InputError
from sleuth.http.responses import encode_json

KEEP_ALIVE_SECONDS = 75  # longer than a training loop pauses between two bursts of searches
SHUTDOWN_SECONDS = 30
CLOSE_NOTICE_SECONDS = 0.3  # during which responses on open connections carry "connection: close"
MAX_HEAD_BYTES = 65_536
LINGER_SECONDS = 1.0  # a refused connection stays open this long, so that the client can read the response
HEAD_END = b"\r\n\r\n"
WILDCARD_HOSTS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 (compared with, never bound to)
# Connecting a datagram socket sends nothing; it asks the system for the outgoing interface. Documentation addresses
# (RFC 5737, RFC 3849) are outside of every network.
PROBES = ((socket.AF_INET, "203.0.113.1"), (socket.AF_INET6, "2001:db8::1"))
BIND_REMEDIES = {
    errno.EADDRINUSE: "it is in use; stop the process that listens there, or choose another port (0 picks a free one)",
    errno.EACCES: "permission denied; choose a port above 1023",
    errno.EADDRNOTAVAIL: "this machine has no such address; use one of its own (0.0.0.0 for all)",
}


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket without listening yet; raise InputError if the address is not available."""
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(f"unknown host {host!r} ({error.strerror}); use an address of this machine") from error
    # localhost has an IPv4 and an IPv6 address; clients that support only one of them support IPv4.
    family, kind, protocol, _, address = min(candidates, key=lambda each: each[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        remedy = BIND_REMEDIES.get(error.errno or 0, f"{error.strerror}; choose another address")
        raise InputError(f"cannot listen on port {port} of {host}: {remedy}") from error
    return listener


def serve(
    app: ASGIApp,
    listener: socket.socket,
    on_ready: Callable[[], None],
    *,
    shutdown_seconds: int = SHUTDOWN_SECONDS,
    lifespan: Literal["on", "off"] = "off",
) -> None:
    """Serve until SIGTERM or SIGINT, then finish accepted requests within `shutdown_seconds`."""
    # Exempt loaded objects from garbage collection: scanning them took a tenth of the time of a busy server.
    gc.collect()
    gc.freeze()
    try:
        _Server(_configure(app, shutdown_seconds, lifespan), on_ready).run(sockets=[listener])
    finally:
        gc.unfreeze()  # so that libraries can release their resources at exit


class BackgroundServer:
    """Serves an application in a daemon thread with its own event loop, from `start` until `close`."""

    def __init__(self, app: ASGIApp, listener: socket.socket, *, shutdown_seconds: int = 1) -> None:
        self._ready = threading.Event()
        self._server = _Server(_configure(app, shutdown_seconds, "on"), self._ready.set)
        self._listener = listener
        self._thread = threading.Thread(target=self._run, name="http server", daemon=True)

    def start(self) -> None:
        """Start the thread and wait until the server accepts connections."""
        self._thread.start()
        self._ready.wait()
        if not self._server.started:
            raise RuntimeError("the HTTP server did not start; see its log")

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._listener:
                self._server.run(sockets=[self._listener])
        finally:
            self._ready.set()  # also if it failed to start


def _configure(app: ASGIApp, shutdown_seconds: int, lifespan: Literal["on", "off"]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        access_log=False,
        backlog=4096,
        http=BoundedHeadProtocol,
        interface="asgi3",
        lifespan=lifespan,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=shutdown_seconds,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        ws="none",
    )


def reachable_host(host: str) -> str:
    """Return the address at which other machines reach a server bound to `host`."""
    if host not in WILDCARD_HOSTS:
        return host
    for family, outside in PROBES:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((outside, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def authority(host: str, port: int) -> str:
    """Return the host and port of the URL at which other machines reach the server."""
    reachable = reachable_host(host)
    return f"[{reachable}]:{port}" if ":" in reachable else f"{reachable}:{port}"


class BoundedHeadProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with 431 for heads above 64 KiB and 408 for heads that take more than 20 s.

    uvicorn limits neither: a header of 96 MB blocked all clients for seconds, and an endless head kept its connection
    forever. Trailers and chunk extensions have the same limits, and so does a body that is still being sent after its
    response.
    """

    head_seconds = 20.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Bytes since the parser last completed a head, a body chunk or a message, and the last three bytes.
        self._head_bytes, self._tail = 0, b""
        self._progressed = self._in_body = self._refused = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        self._progressed = self._in_body = True
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._progressed, self._in_body = True, False
        self._stop_timer()
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        remaining = MAX_HEAD_BYTES - self._head_bytes
        if not self._in_body and len(data) > remaining and HEAD_END not in self._tail + data[:remaining]:
            self._refuse_size()  # before parsing, which is slow for large heads
            return
        self._progressed = False
        super().data_received(data)
        if self._progressed:
            self._head_bytes, self._tail = 0, b""
        else:
            self._head_bytes += len(data)
            self._tail = (self._tail + data)[-len(HEAD_END) + 1 :]
            if self._in_body and self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_size()
                return
        if self.cycle.response_complete if self._in_body else not self._progressed:
            self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._start_timer()  # the response to the previous request comes first
        elif self._head_bytes and not self._in_body:
            self._refuse(b"408 Request Timeout", f"the request head did not arrive within {self.head_seconds:g} s")
        else:
            self.transport.close()

    def _refuse_size(self) -> None:
        self._refuse(b"431 Request Header Fields Too Large", f"the request head exceeds {MAX_HEAD_BYTES:,} bytes")

    def _refuse(self, status: bytes, detail: str) -> None:
        self._stop_timer()
        self._refused = True
        if self.transport.is_closing():
            return
        body = encode_json({"detail": detail})
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, len(body)) + body)
        # Closing at once would reset the connection of a client that is still writing.
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer requests already sent on open connections, with "connection: close", before shutting down."""
        for server in self.servers:
            server.close()
        if self.server_state.connections:
            self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
            await asyncio.sleep(CLOSE_NOTICE_SECONDS)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM without raising the signal again afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, action in previous.items():
                signal.signal(number, action)

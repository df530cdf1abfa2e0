"""A port, and an application served on it until it is told to stop; what was accepted is finished first."""

import asyncio
import errno
import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import uvicorn
from starlette.types import ASGIApp

from sleuth.errors import InputError
from sleuth.retrieval.service.bounded_head import BoundedHead

BACKLOG = 4096
KEEP_ALIVE = 75  # seconds; longer than the pauses of a training loop between two bursts of searches
GRACE = 30
LAST_CALL = 0.3  # seconds in which clients on open connections learn that they should leave

REMEDIES = {
    errno.EADDRINUSE: "it is in use; stop what listens there, or choose another port (0 finds a free one)",
    errno.EACCES: "permission is denied; choose a port above 1023",
    errno.EADDRNOTAVAIL: "this machine has no such address; choose one of its own (0.0.0.0: all of them)",
}


def bound(host: str, port: int) -> socket.socket:
    """A socket that holds the port and does not listen yet; a port that cannot be had is an InputError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(
            f"the host {host!r} is not known ({error.strerror}); give an address of this machine"
        ) from error
    # A name such as localhost has addresses of both versions; clients that know only one know the older.
    family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        why = REMEDIES.get(error.errno or 0, f"{error.strerror}; choose another address")
        raise InputError(f"port {port} of {host} cannot be served: {why}") from error
    return listener


def serve(
    app: ASGIApp,
    listener: socket.socket,
    ready: Callable[[], None],
    *,
    grace: int = GRACE,
    lifespan: Literal["on", "off"] = "off",
) -> None:
    """Serves until SIGTERM or SIGINT, then finishes what was accepted, for `grace` seconds at most.

    With `lifespan` the application is told before the first request and after the last.
    """
    config = uvicorn.Config(
        app,
        access_log=False,
        backlog=BACKLOG,
        http=BoundedHead,
        interface="asgi3",
        lifespan=lifespan,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=grace,
        timeout_keep_alive=KEEP_ALIVE,
        ws="none",
    )
    # What was loaded stays: looking through it for garbage again and again took a tenth of the time of a busy server.
    gc.collect()
    gc.freeze()
    try:
        _Server(config, ready).run(sockets=[listener])
    finally:
        # Else libraries complain at the end of what was never given back.
        gc.unfreeze()


class _Server(uvicorn.Server):
    """Says when it is ready, and ends without an error when it was told to."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As its parent, but requests on their way over open connections are answered, as the last ones there."""
        for server in self.servers:
            server.close()
        if self.server_state.connections:
            self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
            await asyncio.sleep(LAST_CALL)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As its parent, but does not raise the signal again afterwards: being stopped is no failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, action in before.items():
                signal.signal(number, action)

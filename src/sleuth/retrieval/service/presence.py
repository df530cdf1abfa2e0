"""Work that is given up when the client it is done for has left."""

import asyncio
from types import TracebackType

from starlette.requests import ClientDisconnect
from starlette.types import Receive

PATIENCE = 0.05  # seconds before the watch begins: most answers are there by then, and a watch costs a task


class WhileConnected:
    """Cancels what is done inside when the client leaves, and raises ClientDisconnect; the body is read before."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a client is waited for outside of a task; run this in one")
        self._task = task
        self._timer = loop.call_later(PATIENCE, self._begin)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        watching = self._watching
        if watching is None:
            return
        # Whether the watch ended first tells a client that left from a server that is being taken down.
        left = watching.done() and not watching.cancelled()
        watching.cancel()
        if left and isinstance(error, asyncio.CancelledError) and self._task.uncancel() == 0:
            raise ClientDisconnect from None

    def _begin(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._task.cancel()

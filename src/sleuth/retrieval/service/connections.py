"""Connections to one server: a pool for each event loop that uses them, closed when its loop ends."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import httpx


class Lane:
    """What belongs to one event loop: its slots, each with a connection of its own.

    One pool for all would look at every connection it has, several times a request.
    """

    def __init__(self, slots: int, open_one: Callable[[], httpx.AsyncClient]) -> None:
        self._free = asyncio.Semaphore(slots)
        self._open_one = open_one
        self._opened: list[httpx.AsyncClient] = []
        self._idle: list[httpx.AsyncClient] = []

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[httpx.AsyncClient]:
        """Waits for a free slot, first come first served; its connection is the one used last."""
        async with self._free:
            http = self._idle.pop() if self._idle else self._open()
            try:
                yield http
            finally:
                http.cookies.clear()  # an answer must not depend on those before
                self._idle.append(http)

    async def aclose(self) -> None:
        for http in self._opened:
            await http.aclose()

    def _open(self) -> httpx.AsyncClient:
        self._opened.append(self._open_one())
        return self._opened[-1]


class Connections:
    """Lanes to a server, one a loop, each with so many slots; no request has a time-out but the caller's."""

    def __init__(self, slots: int, connect: Callable[[], httpx.AsyncBaseTransport], headers: Mapping[str, str]) -> None:
        """`connect` is called for each slot; every request has the headers."""
        self._slots, self._connect, self._headers = slots, connect, headers
        self._lanes: dict[asyncio.AbstractEventLoop, tuple[Lane, AsyncGenerator[Lane, None]]] = {}

    async def lane(self) -> Lane:
        """The lane of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._lanes:
            self._lanes = {each: lane for each, lane in self._lanes.items() if not each.is_closed()}
            keeper = self._keep(loop)
            # The generator reaches its yield without a pause, so no other task comes between.
            self._lanes[loop] = await anext(keeper), keeper
        return self._lanes[loop][0]

    async def aclose(self) -> None:
        """Closes the lane of the running loop; without it, it is closed when the loop ends."""
        _, keeper = self._lanes.get(asyncio.get_running_loop(), (None, None))
        if keeper is not None:
            await keeper.aclose()

    async def _keep(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Lane, None]:
        """Yields once; a loop that ends closes the generators started in it, and so the lane here."""
        lane = Lane(self._slots, self._open)
        try:
            yield lane
        finally:
            self._lanes.pop(loop, None)
            await lane.aclose()

    def _open(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self._connect(), headers=self._headers, timeout=httpx.Timeout(None))

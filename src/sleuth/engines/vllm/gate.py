"""So many callers at a time, the lowest orders first."""

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """The places of one server; who waits is let in by order, then by arrival."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._arrivals = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self.inside = 0

    @property
    def crowd(self) -> int:
        """Callers inside and before the gate."""
        return self.inside + len(self._waiting)

    @asynccontextmanager
    async def place(self, order: int) -> AsyncIterator[None]:
        """A place for the length of the block."""
        await self._enter(order)
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
            self._leave()

    async def _enter(self, order: int) -> None:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._arrivals += 1
        heapq.heappush(self._waiting, (order, self._arrivals, turn))
        # Not at once: callers that come in the same moment are let in by order too.
        loop.call_soon(self._let_in)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()
            raise

    def _leave(self) -> None:
        self._free += 1
        self._let_in()

    def _let_in(self) -> None:
        while self._free and self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                self._free -= 1
                turn.set_result(None)

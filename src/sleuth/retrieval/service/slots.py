"""How many may be at work at once, whichever event loop they are in."""

import asyncio


class Slots:
    """A semaphore that outlives event loops: each loop finds all slots free. Those who wait are served in order."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._loop: asyncio.AbstractEventLoop | None = None
        self._semaphore = asyncio.Semaphore(count)

    def here(self) -> asyncio.Semaphore:
        """The semaphore of the running loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._semaphore = loop, asyncio.Semaphore(self._count)
        return self._semaphore

"""An episode under way: it runs by itself, and whoever asked follows what happens."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from sleuth.agent.episode import Agent, Task
from sleuth.serve.agent.account import Account
from sleuth.serve.agent.events import End, Event
from sleuth.serve.agent.overheard import overheard


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be answered and how; `most` tokens are sampled for it, where that is not None."""

    task: Task
    most: int | None = None
    cuts: Mapping[str, Any] = field(default_factory=dict)


class Show:
    """Runs the episode of a wish in a place of its own, which is free again when the episode is over or left."""

    def __init__(
        self, agent: Agent, wish: Wish, order: int, give_back: Callable[[], None], ended: Callable[[End], None]
    ) -> None:
        """Begins in a place that `give_back` frees."""
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._ended = ended
        self._running = asyncio.create_task(self._run(agent, wish, order))
        # Also a task that is cancelled before it began gives its place back.
        self._running.add_done_callback(lambda _: give_back())

    async def __aenter__(self) -> "Show":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Whoever leaves before the end takes the episode with them."""
        self._running.cancel()
        await asyncio.wait([self._running])
        if not self._running.cancelled():
            self._running.exception()  # looked at: whoever followed has been told

    async def events(self, silence: float | None = None) -> AsyncIterator[Event | None]:
        """What happens, up to the end; None whenever nothing did for `silence` seconds."""
        while True:
            try:
                event = await asyncio.wait_for(self._queue.get(), silence)
            except TimeoutError:
                yield None
                continue
            if event is None:
                break
            yield event
        await self._running  # what broke it, if anything did, is told here

    async def _run(self, agent: Agent, wish: Wish, order: int) -> None:
        began = time.monotonic()
        account = Account(self._queue.put_nowait, wish.most)
        try:
            trajectory = await overheard(agent, account, wish.cuts).run(wish.task, order)
            end = End(trajectory, time.monotonic() - began, account.cut)
            self._ended(end)
            self._queue.put_nowait(end)
        finally:
            self._queue.put_nowait(None)

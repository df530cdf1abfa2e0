"""A served episode: it runs in its own task while the client receives its events."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sleuth.agent.conversation import TextStream, trim_at_stop
from sleuth.agent.episode import Agent, Task
from sleuth.agent.tools import Failure, Tool, Toolbox, ToolResult
from sleuth.engines.base import Completion, OnTokens, Sampling, Session
from sleuth.errors import FunctionFailed, SearchUnavailable
from sleuth.records import ToolCall
from sleuth.serve.agent.events import End, EpisodeRecorder, Event, ReasoningParser, action_prefixes, describe_source

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """A task with its token budget and its sampling settings other than temperature."""

    task: Task
    max_tokens: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


class LiveEpisode:
    """Runs an episode; `release` is called when it ends or the client leaves, `on_end` with its end."""

    def __init__(
        self,
        agent: Agent,
        request: EpisodeRequest,
        order: int,
        release: Callable[[], None],
        on_end: Callable[[End], None],
    ) -> None:
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._on_end = on_end
        self._task = asyncio.create_task(self._run(agent, request, order))
        # A callback, because a task that is cancelled before it starts must release its slot too.
        self._task.add_done_callback(lambda _: release())

    async def __aenter__(self) -> "LiveEpisode":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel the episode if it is still running."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # retrieved: the client was told by `events`

    async def events(self, idle_seconds: float | None = None) -> AsyncIterator[Event | None]:
        """The events up to the end; None after every `idle_seconds` without one."""
        while True:
            try:
                event = await asyncio.wait_for(self._queue.get(), idle_seconds)
            except TimeoutError:
                yield None
                continue
            if event is None:
                break
            yield event
        await self._task  # raises the exception of the episode, if any

    async def _run(self, agent: Agent, request: EpisodeRequest, order: int) -> None:
        start = time.monotonic()
        recorder = EpisodeRecorder(self._queue.put_nowait, request.max_tokens)
        observed = replace(
            agent,
            engine=ObservedEngine(agent, recorder, request.sampling),
            tools=ObservedToolbox(agent.tools.retriever, agent.tools.k, inner=agent.tools, recorder=recorder),
        )
        try:
            trajectory = await observed.run(request.task, order)
            end = End(trajectory, time.monotonic() - start, recorder.token_limit)
            self._on_end(end)
            self._queue.put_nowait(end)
        finally:
            self._queue.put_nowait(None)


@dataclass(frozen=True, slots=True)
class ObservedEngine:
    """The engine of an agent; reports reasoning and actions to a recorder."""

    agent: Agent
    recorder: EpisodeRecorder
    sampling: Mapping[str, Any]

    def session(self, priority: int) -> AbstractContextManager[Session]:
        return self.agent.engine.session(priority)

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: Session | None = None, on_tokens: OnTokens | None = None
    ) -> Completion:
        agent, recorder = self.agent, self.recorder
        bounded = replace(sampling, max_tokens=recorder.begin_turn(sampling.max_tokens), **self.sampling)
        parser = ReasoningParser(action_prefixes(agent.protocol))
        stream = TextStream(agent.tokens, lambda text: recorder.add_thought(parser.feed(text)))

        def forward(new: Sequence[int]) -> None:
            stream.add(new)
            if on_tokens is not None:
                on_tokens(new)

        completion = await agent.engine.generate(ids, bounded, session, forward)
        recorder.count_tokens(len(completion.ids))
        _, text = trim_at_stop(completion, sampling.stops, agent.tokens)
        recorder.add_thought(parser.finish(text))
        recorder.end_turn(agent.protocol.parse(text), parser.extract(text))
        return completion

    def publish(self, weights: "Mapping[str, Tensor] | None", version: int) -> None:
        self.agent.engine.publish(weights, version)

    async def close(self) -> None:
        """No-op: all episodes share the engine."""


@dataclass(frozen=True, slots=True)
class ObservedToolbox(Toolbox):
    """The tools of an agent; reports calls and their results to a recorder."""

    inner: Toolbox = field(kw_only=True)
    recorder: EpisodeRecorder = field(kw_only=True)

    @property
    def is_running(self) -> bool:
        return self.inner.is_running

    def tool(self, name: str) -> Tool | None:
        return self.inner.tool(name)

    async def call(self, call: ToolCall) -> ToolResult | Failure:
        self.recorder.begin_call(call)
        start = time.monotonic()
        result = await self.inner.call(call)
        step: dict[str, Any] = {"seconds": round(time.monotonic() - start, 4)}
        match result:
            case SearchUnavailable():
                step["failure"] = result.cause
            case FunctionFailed():
                step["failure"] = str(result)
            case str():
                step["result"] = result
            case _:
                step["sources"] = [
                    {"for": query, **describe_source(hit)}
                    for query, hits in zip(call.lookups, result, strict=True)
                    for hit in hits
                ]
        self.recorder.end_call(step)
        return result

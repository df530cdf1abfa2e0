"""A served episode, which runs in its own task and sends reasoning, steps and the end to the client as events."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sleuth.agent.conversation import TextStream, trim_at_stop
from sleuth.agent.episode import Agent
from sleuth.agent.protocol import Protocol
from sleuth.agent.task import Task
from sleuth.agent.tools import Failure, Tool, Toolbox, ToolResult
from sleuth.engines.base import Completion, OnTokens, Sampling, Session
from sleuth.errors import EngineFailure, FunctionFailed, SearchUnavailable
from sleuth.records import THINK_CLOSE, THINK_OPEN, Action, Answer, Hit, Malformed, ToolCall, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

_OPENING_TAG = re.compile(r"<\w+>")
BARE_PREFIX = 8  # characters that identify an action without a tag, such as {"name":


@dataclass(frozen=True, slots=True)
class Thought:
    """The next piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class StepStarted:
    """The model's next action, and the reasoning before it."""

    index: int
    action: Action
    thought: str

    @property
    def content(self) -> dict[str, Any]:
        """The fields of the step for clients."""
        return {**_describe(self.action), "thought": self.thought}


@dataclass(frozen=True, slots=True)
class StepFinished:
    """The result of the tool call of a step."""

    index: int
    call: ToolCall
    result: ToolResult | Failure
    seconds: float

    @property
    def content(self) -> dict[str, Any]:
        """More fields of the step for clients."""
        return {"seconds": round(self.seconds, 4), **_describe_result(self.call, self.result)}


@dataclass(frozen=True, slots=True)
class End:
    """The finished episode; `token_limit` is set if the request's token budget ended the episode."""

    trajectory: Trajectory
    seconds: float
    token_limit: bool

    @property
    def stop(self) -> str:
        """The trajectory's stop reason, or max_tokens."""
        return "max_tokens" if self.token_limit else self.trajectory.stop.value


Event = Thought | StepStarted | StepFinished | End


@dataclass(slots=True)
class EpisodeRecorder:
    """Converts an episode into events and enforces its token budget, if any."""

    emit: Callable[[Event], None]
    tokens_left: int | None = None
    token_limit: bool = False
    steps: int = 0
    _has_thought: bool = False
    _separator: str = ""
    _announced: ToolCall | None = None

    def begin_turn(self, max_tokens: int) -> int:
        """Return the number of tokens that a turn may sample; raises EngineFailure if the budget is spent."""
        if self.tokens_left is not None and self.tokens_left <= 0:
            self.token_limit = True
            raise EngineFailure("the token budget of this request is spent")
        self._separator = "\n\n" if self._has_thought else ""
        return max_tokens if self.tokens_left is None else min(max_tokens, self.tokens_left)

    def add_thought(self, text: str) -> None:
        """Emit a piece of reasoning; a blank line separates the turns."""
        if text:
            self.emit(Thought(self._separator + text))
            self._separator, self._has_thought = "", True

    def end_turn(self, action: Action, thought: str, tokens: int = 0) -> None:
        """Begin the step of a turn's action, and count the tokens that the turn sampled."""
        if self.tokens_left is not None:
            self.tokens_left -= tokens
        self._announced = action if isinstance(action, ToolCall) else None
        self.emit(StepStarted(self.steps, action, thought))
        self.steps += 1

    def begin_call(self, call: ToolCall) -> None:
        """Begin a step for a call, unless `end_turn` already did."""
        if call != self._announced:
            self.end_turn(call, "")
        self._announced = None

    def end_call(self, call: ToolCall, result: ToolResult | Failure, seconds: float) -> None:
        """Add the result of a call to its step."""
        self.emit(StepFinished(self.steps - 1, call, result, seconds))


def _describe(action: Action) -> dict[str, Any]:
    match action:
        case ToolCall("search"):
            return {"type": "search", "queries": list(action.lookups)}
        case ToolCall("access"):
            return {"type": "access", "urls": list(action.lookups)}
        case ToolCall(name, arguments):
            return {"type": "tool", "name": name, "arguments": dict(arguments)}
        case Answer():
            return {"type": "answer"}
        case Malformed(reason):
            return {"type": "malformed", "reason": reason}


def _describe_result(call: ToolCall, result: ToolResult | Failure) -> dict[str, Any]:
    match result:
        case SearchUnavailable():
            return {"failure": result.cause}
        case FunctionFailed():
            return {"failure": str(result)}
        case str():
            return {"result": result}
        case _:
            found = zip(call.lookups, result, strict=True)
            return {"sources": [{"for": query, **_describe_source(hit)} for query, hits in found for hit in hits]}


def _describe_source(hit: Hit) -> dict[str, Any]:
    passage, url = hit.passage, hit.passage.extra.get("url")
    source = {"id": passage.id, "title": passage.title, "text": passage.text, "score": hit.score}
    return {**source, "url": url} if isinstance(url, str) else source


def action_prefixes(protocol: Protocol) -> tuple[str, ...]:
    """Return the prefixes of a protocol's actions; the text before an action is reasoning."""
    examples = [protocol.write(ToolCall.search("Oslo")), protocol.write(Answer("Oslo"))]
    prefixes = [match[0] if (match := _OPENING_TAG.match(text)) else text[:BARE_PREFIX] for text in examples]
    return tuple(dict.fromkeys([*prefixes, *(stop.replace("</", "<", 1) for stop in protocol.stops)]))


class ReasoningParser:
    """Extracts the reasoning from the growing text of a turn: the text before the action, without tags.

    Pieces are final: text that may become a tag is held back until more text arrives.
    """

    def __init__(self, prefixes: Sequence[str]) -> None:
        self._prefixes = tuple(prefixes)
        self._tags = (*prefixes, THINK_OPEN, THINK_CLOSE)
        self._text = ""
        self._sent = 0

    def feed(self, text: str) -> str:
        """Add text of the turn; return the new reasoning."""
        self._text += text
        longest = min(len(self._text), max(map(len, self._tags)) - 1)
        suffixes = (self._text[-length:] for length in range(longest, 0, -1))
        undecided = next((part for part in suffixes if any(tag.startswith(part) for tag in self._tags)), "")
        return self.finish(self._text.removesuffix(undecided))

    def finish(self, text: str) -> str:
        """Return the rest of the reasoning, given the whole text of the turn."""
        thought = self.extract(text)
        new = thought[self._sent :]
        self._sent = max(self._sent, len(thought))
        return new

    def extract(self, text: str) -> str:
        """Return the reasoning in the whole text of a turn."""
        ends = [place for prefix in self._prefixes if (place := text.find(prefix)) >= 0]
        return re.sub(f"{THINK_OPEN}|{THINK_CLOSE}", "", text[: min(ends, default=len(text))]).strip()


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """A task with its token budget and its sampling settings other than temperature."""

    task: Task
    max_tokens: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


class LiveEpisode:
    """Runs an episode; calls `release` at the end or if the client disconnects, and `on_end` with the End event."""

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

    async def __aexit__(self, *_: object) -> None:
        """Cancel the episode if it is still running."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # mark the exception as retrieved; `events` has reported it to the client

    async def events(self, idle_seconds: float | None = None) -> AsyncIterator[Event | None]:
        """Yield the events up to the end; None after every `idle_seconds` without an event."""
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


class LiveEpisodes:
    """The episodes of one request; `start` waits for a slot and starts the episode of a choice."""

    def __init__(self, start: Callable[[int], Awaitable[LiveEpisode]], count: int) -> None:
        self.count = count
        self._queue: asyncio.Queue[tuple[int, Event] | Exception | None] = asyncio.Queue()
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.create_task(self._run(start, index)) for index in range(count)]

    async def __aenter__(self) -> "LiveEpisodes":
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel the episodes that are still running or waiting."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        if self._started.done() and not self._started.cancelled():
            self._started.exception()  # mark the exception as retrieved; `events` reports it too

    async def started(self) -> None:
        """Wait for the start of the first episode; raises the exception of `start`."""
        await asyncio.shield(self._started)

    async def events(self, idle_seconds: float | None = None) -> AsyncIterator[tuple[int, Event] | None]:
        """Yield each event with the index of its episode; None after every `idle_seconds` without an event."""
        running = self.count
        while running:
            try:
                item = await asyncio.wait_for(self._queue.get(), idle_seconds)
            except TimeoutError:
                yield None
                continue
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item

    async def _run(self, start: Callable[[int], Awaitable[LiveEpisode]], index: int) -> None:
        try:
            async with await start(index) as episode:
                if not self._started.done():
                    self._started.set_result(None)
                async for event in episode.events():
                    if event is not None:
                        self._queue.put_nowait((index, event))
        except Exception as error:
            if not self._started.done():
                self._started.set_exception(error)
            self._queue.put_nowait(error)
        else:
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
        _, text = trim_at_stop(completion, sampling.stops, agent.tokens)
        recorder.add_thought(parser.finish(text))
        recorder.end_turn(agent.protocol.parse(text), parser.extract(text), len(completion.ids))
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
        self.recorder.end_call(call, result, time.monotonic() - start)
        return result

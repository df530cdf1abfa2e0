"""One episode: the model reasons, calls tools and answers a question, within budgets."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol as TypingProtocol

from sleuth.agent import prompts
from sleuth.agent.conversation import Conversation, ModelTurn, OnText, TokenConversation
from sleuth.agent.observation import Observation
from sleuth.agent.protocol import Protocol
from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox, ToolResult
from sleuth.config.agent import AgentConfig
from sleuth.engines.base import Engine, Sampling, Session
from sleuth.engines.remote import ContextFull
from sleuth.errors import ConfigError, EngineFailure, FunctionFailed, SearchUnavailable
from sleuth.model.tokens import Tokens
from sleuth.records import Action, Answer, Malformed, Outcome, StopReason, ToolCall, Trajectory, Turn


class Runner(TypingProtocol):
    """Interface for running tasks."""

    async def run(self, task: Task, order: int = 0, on_text: OnText | None = None) -> Trajectory:
        """Run an episode to its end; the trajectory is unusable if anything other than the model failed."""


class ConfiguredRunner(Runner, TypingProtocol):
    """A runner with a protocol, tools and settings; its model runs in an engine or on a server."""

    @property
    def protocol(self) -> Protocol: ...
    @property
    def tools(self) -> Toolbox: ...
    @property
    def config(self) -> AgentConfig: ...


# Signature of the built-in methods; `methods.UserMethod` adapts imported functions to it.
Method = Callable[[ConfiguredRunner, Task, Conversation], Awaitable[Trajectory]]


async def multi_turn(agent: ConfiguredRunner, task: Task, conversation: Conversation) -> Trajectory:
    """The method `search`: alternate model turns and observations until the model answers."""
    config, protocol, prefix = agent.config, agent.protocol, task.prefix
    if prefix is not None:
        if not isinstance(conversation, TokenConversation):
            raise ConfigError("a branch continues the tokens of another episode and needs a local model, not a server")
        conversation.resume(prefix.ids)
        return await Episode(agent, task, conversation, config.max_turns, list(prefix.turns)).run()
    messages = prompts.messages(task.question, config.template, protocol, abstain=bool(config.abstain))
    conversation.begin(messages, protocol.functions)
    return await Episode(agent, task, conversation, agent.config.max_turns).run()


@dataclass(frozen=True, slots=True)
class Agent:
    """An engine with a protocol and tools; `method` turns a task into a trajectory."""

    engine: Engine
    tokens: Tokens
    protocol: Protocol
    tools: Toolbox
    config: AgentConfig
    method: Method = multi_turn

    def __post_init__(self) -> None:
        prompts.load_template(self.config.template)  # fail on an unknown name now, not in the middle of a batch

    async def run(self, task: Task, order: int = 0, on_text: OnText | None = None) -> Trajectory:
        try:
            with self.engine.session(order) as session:
                session.in_tool = lambda: self.tools.is_running
                return await self.method(self, task, self.conversation(session, on_text))
        except FunctionFailed as failure:
            return task.trajectory(StopReason.FUNCTION_FAILED, failure=str(failure))

    def conversation(self, session: Session, on_text: OnText | None = None) -> TokenConversation:
        return TokenConversation(self.engine, self.tokens, self.protocol, self.config.context_tokens, session, on_text)


@dataclass(slots=True)
class Episode:
    """The state of one episode: generate, act and observe until a stop reason applies."""

    agent: ConfiguredRunner
    task: Task
    conversation: Conversation
    max_turns: int
    turns: list[Turn] = field(default_factory=list)
    failure: str | None = None

    async def run(self) -> Trajectory:
        """Run the episode in a conversation that already contains the prompt."""
        stop = None
        while stop is None:
            stop = await self._step()
        return self.task.trajectory(stop, self.turns, self.failure, self.conversation.ledger)

    async def _step(self) -> StopReason | None:
        """Generate one turn, execute its action and show the result; return the stop reason, if any."""
        room = self.conversation.room
        if room <= 0:
            return StopReason.OUT_OF_TOKENS
        sampling = Sampling(
            max_tokens=min(self.agent.config.turn_tokens, room),
            temperature=self.task.temperature,
            stops=self.agent.protocol.stops,
            seed=self.task.turn_seed(len(self.turns)),
            top_p=self.task.top_p,
            top_k=self.task.top_k,
        )
        try:
            turn = await self.conversation.generate(sampling)
        except ContextFull:
            return StopReason.OUT_OF_TOKENS
        except EngineFailure as failure:
            self.failure = str(failure)
            return StopReason.ENGINE_FAILED
        return await self._act(turn)

    async def _act(self, turn: ModelTurn) -> StopReason | None:
        action = turn.action
        if isinstance(action, ToolCall):  # a user's protocol may not have validated it
            action = self.agent.tools.validate(action)
        match action:
            case Answer():
                self._record(turn, action, Outcome.ANSWERED)
                return StopReason.ANSWERED
            case ToolCall() if len(self.turns) + 1 == self.max_turns:
                self._record(turn, action, Outcome.REFUSED)
                return StopReason.OUT_OF_TURNS
            case ToolCall(name) if self._is_spent(name):
                self._record(turn, action, Outcome.REFUSED)
                return self._observe(self.agent.protocol.correct(Malformed(f"no calls of {name} are left")))
            case ToolCall():
                return await self._call(turn, action)
            case Malformed():
                self._record(turn, action, Outcome.CORRECTED)
                return self._observe(self.agent.protocol.correct(action))

    async def _call(self, turn: ModelTurn, call: ToolCall) -> StopReason | None:
        result = await self.agent.tools.call(call)
        if isinstance(result, SearchUnavailable | FunctionFailed):
            self.failure = str(result)
            self._record(turn, call, Outcome.UNAVAILABLE)
            is_search = isinstance(result, SearchUnavailable)
            return StopReason.SEARCH_UNAVAILABLE if is_search else StopReason.FUNCTION_FAILED
        self._record(turn, call, Outcome.RETURNED if isinstance(result, str) else Outcome.FOUND, result)
        return self._observe(self.agent.protocol.observe(call, result))

    def _observe(self, observation: Observation) -> StopReason | None:
        if len(self.turns) >= self.max_turns:
            return StopReason.OUT_OF_TURNS
        shown = self.conversation.observe(observation, self.agent.config.observation_tokens)
        last = self.turns[-1]
        if shown.cut is not None and (last.hits or last.result is not None):
            self.turns[-1] = replace(last, shown=shown.cut)
        return None if shown.fits else StopReason.OUT_OF_TOKENS

    def _record(self, turn: ModelTurn, action: Action, outcome: Outcome, result: ToolResult = ()) -> None:
        text, hits = (result, ()) if isinstance(result, str) else (None, result)
        well_formed = turn.well_formed and isinstance(action, Malformed) == isinstance(turn.action, Malformed)
        flat, counts = tuple(chain.from_iterable(hits)), tuple(map(len, hits))
        self.turns.append(Turn(turn.text, action, outcome, turn.tokens, flat, counts, well_formed, result=text))

    def _is_spent(self, name: str) -> bool:
        tool = self.agent.tools.tool(name)
        limit = self.agent.config.searches if name == "search" else tool.limits.calls if tool else None
        carried_out = [turn.action for turn in self.turns if turn.outcome in (Outcome.FOUND, Outcome.RETURNED)]
        calls = sum(isinstance(action, ToolCall) and action.name == name for action in carried_out)
        return limit is not None and calls >= limit


async def run_batch(
    agent: Runner, tasks: Sequence[Task], concurrent: int, done: Callable[[Trajectory], None] | None = None
) -> list[Trajectory]:
    """Run tasks in order, at most `concurrent` at a time, and return their trajectories in the same order."""
    pending = iter(enumerate(tasks))
    finished: dict[int, Trajectory] = {}

    async def worker() -> None:
        for order, task in pending:
            finished[order] = await agent.run(task, order)
            if done is not None:
                done(finished[order])

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrent, len(tasks))):
                group.create_task(worker())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors  # callers catch the first exception, which cancelled the other tasks
    return [finished[order] for order in range(len(tasks))]

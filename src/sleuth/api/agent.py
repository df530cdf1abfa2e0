"""Agents in Python: ask questions, stream the answer, and evaluate."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sleuth.agent import episode
from sleuth.agent.conversation import OnText
from sleuth.agent.loading import (
    AgentOptions,
    describe_agent,
    describe_remote_agent,
    load_run_agent,
)
from sleuth.agent.methods import require_prompts
from sleuth.agent.remote import RemoteAgent
from sleuth.agent.task import Task
from sleuth.api import background
from sleuth.api.console import quiet_transformers
from sleuth.api.dialogue import Dialogue
from sleuth.api.index import Index, SearchFunction
from sleuth.api.run import Run
from sleuth.config import recipe
from sleuth.config.hooks import register
from sleuth.config.reward import RewardConfig
from sleuth.corpus import questions as question_files
from sleuth.corpus.question_formats import find_reader, read_sleuth
from sleuth.engines.remote import DEFAULT_TIMEOUT, Endpoint, is_address
from sleuth.errors import ConfigError, InputError
from sleuth.evaluate.results import Evaluation, QuestionResult
from sleuth.evaluate.runner import CircuitBreaker, evaluate
from sleuth.gateway.outside import OutsideAgent, load_runner, running
from sleuth.records import Hit, Malformed, Outcome, Question, StopReason, Trajectory, Turn
from sleuth.records import ToolCall as ToolCall
from sleuth.reward.rubric import Rubric
from sleuth.runs.run import Run as RunFolder
from sleuth.serve.agent.live_episode import End, EpisodeRequest, LiveEpisode, StepFinished, StepStarted
from sleuth.serve.agent.live_episode import Thought as Thought

ASKED = Path("asked.jsonl")  # questions come from the caller; this file is never read

Settings = Mapping[str, Any] | Sequence[str]
AnyIndex = str | Path | Index | SearchFunction
AnyQuestions = str | Path | Iterable[Question | Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """The end of an attempt to answer a question; printing it shows the answer, or why there is none."""

    trajectory: Trajectory

    @property
    def text(self) -> str | None:
        """The answer; None if the agent gave none."""
        return self.trajectory.answer

    @property
    def turns(self) -> tuple[Turn, ...]:
        """What the model wrote and what its tools returned, turn by turn."""
        return self.trajectory.turns

    @property
    def queries(self) -> tuple[str, ...]:
        """The queries of all searches, in order."""
        calls = (turn.action for turn in self.turns if isinstance(turn.action, ToolCall))
        return tuple(query for call in calls if call.name == "search" for query in call.lookups)

    @property
    def stop(self) -> StopReason:
        """Why the attempt ended."""
        return self.trajectory.stop

    def __repr__(self) -> str:
        return f"AgentAnswer(text={self.text!r}, queries={self.queries!r}, stop={self.stop.value!r})"

    def __str__(self) -> str:
        searches = f"{self.trajectory.searches} search{'' if self.trajectory.searches == 1 else 'es'}"
        last = self.turns[-1] if self.turns else None
        match self.stop:
            case StopReason.ANSWERED if self.text is not None:
                return f"Answer: {self.text} ({searches})"
            case StopReason.SEARCH_UNAVAILABLE if last is not None and last.outcome is Outcome.UNAVAILABLE:
                return f"No answer: the search engine failed ({searches})"
            case StopReason.FUNCTION_FAILED:
                return f"No answer: {self.trajectory.failure}"
            case StopReason.OUT_OF_TOKENS if last is None:
                return "No answer: the prompt exceeds agent.context_tokens; ask a shorter question"
            case reason:
                return f"No answer: {reason.value.replace('_', ' ')} ({searches})"


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool returned: hits for search and access, text for every other tool, or why it failed."""

    call: ToolCall
    hits: tuple[Hit, ...] = ()
    text: str | None = None
    failure: str | None = None


AgentEvent = Thought | ToolCall | ToolOutput | Malformed | AgentAnswer


class Agent:
    """A model that thinks, searches and answers; `load` one, and `close` it to free its memory."""

    def __init__(self, runner: episode.Agent | OutsideAgent | RemoteAgent, concurrency: int) -> None:
        self._runner, self._concurrency, self._orders = runner, concurrency, count()
        self._stack = ExitStack()
        self._stack.enter_context(running(runner))

    @classmethod
    def load(
        cls,
        run_or_model: str | Path | Run,
        index: AnyIndex | None = None,
        *,
        settings: Settings = (),
        method: str | None = None,
        before: bool = False,
        model: str | None = None,
        key_env: str | None = None,
        timeout: float | None = None,
    ) -> "Agent":
        """Load the agent of a run folder, a model folder or a hub name; or of a server, http://host/v1.

        `index` is required unless a run brings its own. `settings` are those of agent, retrieval and engine, as
        {"agent.searches": 2} or as ["agent.searches=2"]. `before` selects a run's policy from before training.
        `model` (its name there), `key_env` and `timeout` belong to a server.
        """
        name = str(run_or_model.path if isinstance(run_or_model, Run) else run_or_model)
        options = AgentOptions(tuple(setting_lines(settings)), index_name(index), method, before)
        if is_address(name):
            endpoint = Endpoint(name, model or "", key_env, DEFAULT_TIMEOUT if timeout is None else timeout)
            remote = describe_remote_agent(endpoint, options, ASKED)
            return cls(remote.load(), remote.concurrency)
        for option, value in {"model": model, "key_env": key_env, "timeout": timeout}.items():
            if value is not None:
                raise ConfigError(f"{option} has no effect without an address such as http://host:8000/v1; remove it")
        spec = describe_agent(name, options, ASKED)
        is_plain_run = options == AgentOptions(before=before) and (Path(name) / "manifest.json").is_file()
        with quiet_transformers():
            if is_plain_run and not spec.config.agent.is_outside:
                return cls(load_run_agent(RunFolder.open(Path(name)), before), spec.concurrency)
            return cls(load_runner(spec), spec.concurrency)

    def ask(
        self, question: str | Question, *, temperature: float = 0.0, seed: int = 0, on_text: OnText | None = None
    ) -> AgentAnswer:
        """Answer a question; `on_text` receives the whole transcript as it grows, prompt included."""
        return background.run(self._ask(question, temperature, seed, on_text))

    async def ask_async(
        self, question: str | Question, *, temperature: float = 0.0, seed: int = 0, on_text: OnText | None = None
    ) -> AgentAnswer:
        """Like `ask`, for async code; many questions can be asked at the same time."""
        return await background.run_async(self._ask(question, temperature, seed, on_text))

    def stream(
        self, question: str | Question, *, temperature: float = 0.0, seed: int = 0
    ) -> background.Stream[AgentEvent]:
        """Answer a question and yield what happens, for `for` or `async for`; the last event is the AgentAnswer.

        Thought is the next piece of reasoning, ToolCall a call and ToolOutput its result, Malformed a turn that is
        neither a call nor an answer. A model on a server and an outside agent send no events before the end.
        """
        return background.Stream(lambda: self._stream(as_task(question, temperature, seed)))

    def dialogue(self) -> Dialogue:
        """Start a conversation, in which questions may refer to earlier ones."""
        return Dialogue(self)

    @property
    def runner(self) -> episode.Agent | OutsideAgent | RemoteAgent:
        """What plays the episodes."""
        return self._runner

    def evaluate(
        self,
        questions: AnyQuestions,
        *,
        reward: str | Callable[..., Any] = "em",
        temperature: float = 0.0,
        seed: int = 0,
        on_result: Callable[[QuestionResult], None] | None = None,
    ) -> Evaluation:
        """Answer every question once and score the answers; questions are a file, records or rows.

        `reward` is em, f1, cover_em, or a reward function.
        """
        return background.run(self._evaluate(questions, reward, temperature, seed, on_result))

    async def evaluate_async(
        self,
        questions: AnyQuestions,
        *,
        reward: str | Callable[..., Any] = "em",
        temperature: float = 0.0,
        seed: int = 0,
        on_result: Callable[[QuestionResult], None] | None = None,
    ) -> Evaluation:
        """Like `evaluate`, for async code."""
        return await background.run_async(self._evaluate(questions, reward, temperature, seed, on_result))

    def close(self) -> None:
        """Stop the engine and free its memory."""
        self._stack.close()
        if not isinstance(self._runner, RemoteAgent):
            background.run(self._runner.engine.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _ask(
        self, question: str | Question, temperature: float, seed: int, on_text: OnText | None
    ) -> AgentAnswer:
        task = as_task(question, temperature, seed)
        return AgentAnswer(await self._runner.run(task, next(self._orders), on_text))

    async def _stream(self, task: Task) -> AsyncGenerator[AgentEvent, None]:
        if not isinstance(self._runner, episode.Agent):
            trajectory = await self._runner.run(task, next(self._orders))
            for replayed in _replay(trajectory):
                yield replayed
            yield AgentAnswer(trajectory)
            return
        live = LiveEpisode(self._runner, EpisodeRequest(task), next(self._orders), lambda: None, lambda _: None)
        async with live:
            async for event in live.events():
                match event:
                    case Thought():
                        yield event
                    case StepStarted(action=ToolCall() | Malformed() as action):
                        yield action
                    case StepFinished(call=call, result=str(text)):
                        yield ToolOutput(call, text=text)
                    case StepFinished(call=call, result=tuple() as found):
                        yield ToolOutput(call, hits=tuple(hit for hits in found for hit in hits))
                    case StepFinished(call=call, result=failure):
                        yield ToolOutput(call, failure=str(failure))
                    case End(trajectory):
                        yield AgentAnswer(trajectory)

    async def _evaluate(
        self,
        questions: AnyQuestions,
        reward: str | Callable[..., Any],
        temperature: float,
        seed: int,
        on_result: Callable[[QuestionResult], None] | None,
    ) -> Evaluation:
        loaded = await asyncio.to_thread(read_questions, questions)
        if not isinstance(self._runner, OutsideAgent):
            require_prompts(self._runner, loaded)
        return await evaluate(
            self._runner,
            loaded,
            Rubric(RewardConfig(answer=reward if isinstance(reward, str) else register(reward))),
            temperature=temperature,
            seed=seed,
            concurrent=self._concurrency,
            on_result=None if on_result is None else lambda scored: on_result(QuestionResult.of(scored)),
            breaker=CircuitBreaker(),
        )


def read_questions(questions: AnyQuestions) -> list[Question]:
    """Read a question file, or convert rows such as {"question": ..., "golden_answers": [...]}."""
    if isinstance(questions, str | Path):
        return question_files.load(Path(questions))
    loaded: list[Question] = []
    for position, row in enumerate(questions):
        if isinstance(row, Question):
            loaded.append(row)
            continue
        values = {"id": f"q{position}", **row}
        try:
            loaded.append((find_reader(values) or read_sleuth)(values, "questions"))
        except ValueError as error:
            raise InputError(f"question {position}: {error}; a row looks like {question_files.EXPECTED}") from error
    if not loaded:
        raise InputError("there are no questions; give at least one")
    return loaded


def as_task(question: str | Question, temperature: float, seed: int) -> Task:
    """Return an attempt at a question; raises InputError if the question is empty."""
    if isinstance(question, str):
        if not question.strip():
            raise InputError("the question is empty; give some text")
        question = Question("asked", question, (), "asked")
    return Task(question, seed=seed, temperature=temperature)


def setting_lines(settings: Settings) -> list[str]:
    """Return settings as `key=value` lines."""
    return recipe.overrides(settings) if isinstance(settings, Mapping) else list(settings)


def index_name(index: AnyIndex | None) -> str | None:
    """Return the name of an index for `retrieval.index`."""
    match index:
        case None:
            return None
        case Index():
            return index.name
        case str() | Path():
            return str(index)
        case function:
            return register(function)


def _replay(trajectory: Trajectory) -> Iterable[AgentEvent]:
    """The events of a finished attempt."""
    for turn in trajectory.turns:
        match turn.action:
            case ToolCall() as call:
                yield call
                if turn.outcome in (Outcome.FOUND, Outcome.RETURNED):
                    yield ToolOutput(call, turn.hits, turn.result)
                elif turn.outcome is Outcome.UNAVAILABLE:
                    yield ToolOutput(call, failure=trajectory.failure)
            case Malformed() as malformed:
                yield malformed

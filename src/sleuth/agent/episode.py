"""One episode: a question is thought about, searched for and answered, within budgets."""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from sleuth.agent import prompts
from sleuth.agent.cut import up_to_stop
from sleuth.agent.ledger import Ledger
from sleuth.agent.observation import Observation
from sleuth.agent.protocol import Protocol
from sleuth.agent.speech import Speech, TextListener
from sleuth.agent.tools import Found, SearchTool
from sleuth.config.agent import AgentConfig
from sleuth.engines.base import Completion, Engine, Finish, OnTokens, Sampling, Session
from sleuth.errors import EngineFailure, FunctionFailed, SearchUnavailable
from sleuth.model.tokens import Tokens
from sleuth.records import Access, Action, Answer, Malformed, Outcome, Question, Search, StopReason, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Task:
    """An episode to run; temperature 0 is greedy."""

    question: Question
    group: int = 0
    sample: int = 0
    step: int = 0
    seed: int = 0
    temperature: float = 1.0

    def turn_seed(self, turn: int) -> int:
        """A seed of its own for each turn of each sample, the same in every process."""
        name = f"{self.seed}/{self.step}/{self.group}/{self.question.id}/{self.sample}/{turn}"
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")

    def trajectory(
        self, stop: StopReason, turns: Sequence[Turn] = (), failure: str | None = None, ledger: Ledger | None = None
    ) -> Trajectory:
        """The episode as it ended; without a ledger it has no tokens."""
        kept = ledger or Ledger()
        return Trajectory(
            question=self.question,
            group=self.group,
            sample=self.sample,
            step=self.step,
            ids=kept.ids,
            sampled=kept.origin,
            logprobs=kept.logprobs,
            versions=kept.versions,
            turns=tuple(turns),
            stop=stop,
            failure=failure,
        )


Method = Callable[["Agent", Task, Session, TextListener | None], Awaitable[Trajectory]]


async def searched(agent: "Agent", task: Task, session: Session, hear: TextListener | None) -> Trajectory:
    """The method of searching: thought, search and observation in turns, until there is an answer."""
    return await Episode(agent, task, session, hear).run()


@dataclass(frozen=True, slots=True)
class Agent:
    """Everything an episode needs beside its task; `method` is how a task becomes a trajectory."""

    engine: Engine
    tokens: Tokens
    protocol: Protocol
    tool: SearchTool
    config: AgentConfig
    method: Method = searched

    def __post_init__(self) -> None:
        # Found here, a wrong name is the user's one line; found by an episode, it would be the end of a batch.
        prompts.named(self.config.template)

    async def run(self, task: Task, order: int = 0, hear: TextListener | None = None) -> Trajectory:
        """Runs the episode to its end; a failure that is not the model's ends it as unusable."""
        try:
            with self.engine.session(order) as session:
                session.in_tool = lambda: self.tool.waits.any_under_way
                return await self.method(self, task, session, hear)
        except FunctionFailed as failure:
            return task.trajectory(StopReason.FUNCTION_FAILED, failure=str(failure))


@dataclass(slots=True)
class Episode:
    """The state of one run: the ledger grows turn by turn until something ends it.

    `opening` is what it begins with, where that is not the prompt of a search.
    """

    agent: Agent
    task: Task
    session: Session
    hear: TextListener | None
    opening: Sequence[int] | None = None
    ledger: Ledger = field(default_factory=Ledger)
    turns: list[Turn] = field(default_factory=list)
    failure: str | None = None

    async def run(self) -> Trajectory:
        agent = self.agent
        opening = self.opening
        if opening is None:
            opening = prompts.render(self.task.question, agent.config.template, agent.protocol, agent.tokens)
        self._give(list(opening))
        stop = None
        while stop is None:
            stop = await self._turn()
        return self.task.trajectory(stop, self.turns, self.failure, self.ledger)

    async def _turn(self) -> StopReason | None:
        """Generates, acts and observes once; the reason to end, if there is one."""
        if self._room() <= 0:
            return StopReason.OUT_OF_TOKENS
        try:
            completion = await self._generate()
        except EngineFailure as failure:
            self.failure = str(failure)
            return StopReason.ENGINE_FAILED
        completion, text = up_to_stop(completion, self.agent.protocol.stops, self.agent.tokens)
        self.ledger.sampled(completion)
        return await self._act(text, completion)

    async def _act(self, text: str, completion: Completion) -> StopReason | None:
        last = len(self.turns) == self.agent.config.searches
        match self.agent.protocol.parse(text):
            case Answer() as answer:
                self._record(text, answer, Outcome.ANSWERED, completion)
                return StopReason.ANSWERED
            case Search() | Access() as call if last:
                self._record(text, call, Outcome.REFUSED, completion)
                return StopReason.OUT_OF_TURNS
            case Search() | Access() as call:
                return await self._call(text, call, completion)
            case Malformed() as malformed:
                self._record(text, malformed, Outcome.CORRECTED, completion)
                return self._observe(self.agent.protocol.correct(malformed), completion)

    async def _call(self, text: str, call: Search | Access, completion: Completion) -> StopReason | None:
        found = await self.agent.tool.answer(call)
        if isinstance(found, SearchUnavailable):
            self.failure = str(found)
            self._record(text, call, Outcome.UNAVAILABLE, completion)
            return StopReason.SEARCH_UNAVAILABLE
        self._record(text, call, Outcome.FOUND, completion, found)
        return self._observe(self.agent.protocol.observe(call, found), completion)

    def _observe(self, observation: Observation, completion: Completion) -> StopReason | None:
        """Shows the model an observation, its body cut to the budget and its closing kept."""
        if len(self.turns) > self.agent.config.searches:
            return StopReason.OUT_OF_TURNS
        tokens = self.agent.tokens
        limit = min(self.agent.config.observation_tokens, self._room() - 1)
        fitted = observation.fit(tokens, limit, ended=_ended(completion, tokens))
        shown = "" if fitted is None else fitted.cut
        if shown is not None and self.turns[-1].hits:
            self.turns[-1] = replace(self.turns[-1], shown=shown)
        if fitted is None:
            return StopReason.OUT_OF_TOKENS
        self._give(fitted.ids)
        return None

    async def _generate(self) -> Completion:
        config = self.agent.config
        sampling = Sampling(
            max_tokens=min(config.turn_tokens, self._room()),
            temperature=self.task.temperature,
            stops=self.agent.protocol.stops,
            seed=self.task.turn_seed(len(self.turns)),
        )
        return await self.agent.engine.generate(self.ledger.ids, sampling, self.session, self._listener())

    def _listener(self) -> OnTokens | None:
        return None if self.hear is None else Speech(self.agent.tokens, self.hear).listen

    def _room(self) -> int:
        return self.agent.config.context_tokens - len(self.ledger)

    def _give(self, ids: list[int]) -> None:
        self.ledger.given(ids)
        if self.hear is not None:
            self.hear(self.agent.tokens.decode(ids))

    def _record(
        self,
        text: str,
        action: Action,
        outcome: Outcome,
        completion: Completion,
        found: Found = (),
    ) -> None:
        hits, counts = tuple(chain.from_iterable(found)), tuple(map(len, found))
        formed = self.agent.protocol.formed(text, action)
        self.turns.append(Turn(text, action, outcome, len(completion.ids), hits, counts, formed))


def _ended(completion: Completion, tokens: Tokens) -> bool:
    """Whether the model ended its turn itself: the token that does so is the last of those it sampled."""
    by_itself = completion.finish in (Finish.STOP, Finish.END)
    return by_itself and bool(completion.ids) and completion.ids[-1] in tokens.special_ids

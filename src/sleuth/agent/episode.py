"""One episode: a question is thought about, searched for and answered, within budgets."""

import hashlib
from dataclasses import dataclass, field

from sleuth.agent import prompts
from sleuth.agent.cut import up_to_stop
from sleuth.agent.ledger import Ledger
from sleuth.agent.protocol import Protocol
from sleuth.agent.speech import Speech, TextListener
from sleuth.agent.tools import SearchTool
from sleuth.config import AgentConfig
from sleuth.engines.base import Completion, Engine, Listener, Sampling, Seat
from sleuth.errors import EngineFailure, SearchUnavailable
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, Hit, Malformed, Outcome, Question, Search, StopReason, Trajectory, Turn


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


@dataclass(frozen=True, slots=True)
class Agent:
    """Everything an episode needs beside its task."""

    engine: Engine
    tokens: Tokens
    protocol: Protocol
    tool: SearchTool
    config: AgentConfig

    def __post_init__(self) -> None:
        # Found here, a wrong name is the user's one line; found by an episode, it would be the end of a batch.
        prompts.named(self.config.prompt)

    async def run(self, task: Task, order: int = 0, hear: TextListener | None = None) -> Trajectory:
        """Runs the episode to its end; a failure that is not the model's ends it as unusable."""
        with self.engine.seat(order) as seat:
            return await Episode(self, task, seat, hear).run()


@dataclass(slots=True)
class Episode:
    """The state of one run: the ledger grows turn by turn until something ends it."""

    agent: Agent
    task: Task
    seat: Seat
    hear: TextListener | None
    ledger: Ledger = field(default_factory=Ledger)
    turns: list[Turn] = field(default_factory=list)
    failure: str | None = None

    async def run(self) -> Trajectory:
        agent = self.agent
        self._give(prompts.render(self.task.question, agent.config.prompt, agent.protocol, agent.tokens))
        stop = None
        while stop is None:
            stop = await self._turn()
        return self._trajectory(stop)

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
            case Search() as search if last:
                self._record(text, search, Outcome.REFUSED, completion)
                return StopReason.OUT_OF_TURNS
            case Search() as search:
                return await self._search(text, search, completion)
            case Malformed() as malformed:
                self._record(text, malformed, Outcome.CORRECTED, completion)
                return self._observe(*self.agent.protocol.correct(malformed))

    async def _search(self, text: str, search: Search, completion: Completion) -> StopReason | None:
        found = await self.agent.tool.search(search.query)
        if isinstance(found, SearchUnavailable):
            self.failure = str(found)
            self._record(text, search, Outcome.UNAVAILABLE, completion)
            return StopReason.SEARCH_UNAVAILABLE
        self._record(text, search, Outcome.FOUND, completion, found)
        return self._observe(*self.agent.protocol.observe(found))

    def _observe(self, opening: str, body: str, closing: str) -> StopReason | None:
        """Shows the model an observation, its body cut to the budget and its closing kept."""
        if len(self.turns) > self.agent.config.searches:
            return StopReason.OUT_OF_TURNS
        encode = self.agent.tokens.encode
        ends = encode(opening), encode(closing)
        frame = sum(map(len, ends))
        whole = encode(opening + body + closing)
        limit = min(self.agent.config.observation_tokens, self._room() - 1)
        if len(whole) > limit:
            if limit <= frame:
                return StopReason.OUT_OF_TOKENS
            whole = ends[0] + encode(body)[: limit - frame] + ends[1]
        self._give(whole)
        return None

    async def _generate(self) -> Completion:
        config = self.agent.config
        sampling = Sampling(
            max_tokens=min(config.turn_tokens, self._room()),
            temperature=self.task.temperature,
            stops=self.agent.protocol.stops,
            seed=self.task.turn_seed(len(self.turns)),
        )
        return await self.agent.engine.generate(self.ledger.ids, sampling, self.seat, self._listener())

    def _listener(self) -> Listener | None:
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
        action: Answer | Search | Malformed,
        outcome: Outcome,
        completion: Completion,
        hits: tuple[Hit, ...] = (),
    ) -> None:
        self.turns.append(Turn(text, action, outcome, len(completion.ids), hits))

    def _trajectory(self, stop: StopReason) -> Trajectory:
        task, ledger = self.task, self.ledger
        return Trajectory(
            question=task.question,
            group=task.group,
            sample=task.sample,
            step=task.step,
            ids=ledger.ids,
            sampled=ledger.origin,
            logprobs=ledger.logprobs,
            versions=ledger.versions,
            turns=tuple(self.turns),
            stop=stop,
            failure=self.failure,
        )

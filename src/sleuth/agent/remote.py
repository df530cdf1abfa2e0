"""An agent whose model is behind an address: episodes of messages, without tokens, for evaluation and asking."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import httpx

from sleuth.agent import dialogue, methods, prompts
from sleuth.agent.chat_tools import ChatTools
from sleuth.agent.dialogue import Said
from sleuth.agent.episode import Task, searched
from sleuth.agent.observation import Observation
from sleuth.agent.protocol import Protocol
from sleuth.agent.single import Single, example, formed, taken_at_its_word, worded
from sleuth.agent.speech import TextListener
from sleuth.agent.tags import Tags
from sleuth.agent.tools import Found, SearchTool
from sleuth.config.agent import AgentConfig
from sleuth.engines.base import Sampling
from sleuth.engines.remote import ContextFull, Endpoint, Message, Reply, complete_chat
from sleuth.errors import ConfigError, EngineFailure, SearchUnavailable
from sleuth.records import (
    Access,
    Answer,
    Malformed,
    Outcome,
    Question,
    Search,
    StopReason,
    Trajectory,
    Turn,
)

LETTERS = 4  # of a token, where nobody counts them
PROTOCOLS: dict[str, Callable[[], Protocol]] = {
    "tags": Tags,
    "tools": ChatTools,
    "tools-access": lambda: ChatTools(("search", "access")),
}


def protocol_named(name: str) -> Protocol:
    """A protocol for messages by name; one of the user's own is for tokens, and a ConfigError here."""
    if name not in PROTOCOLS:
        raise ConfigError(
            f"agent.protocol is {name!r}, which cannot be spoken with an address; expected {', '.join(PROTOCOLS)}"
        )
    return PROTOCOLS[name]()


@dataclass(frozen=True, slots=True)
class RemoteAgent:
    """Everything an episode needs beside its task; its trajectories have turns and no ids."""

    endpoint: Endpoint
    protocol: Protocol
    tool: SearchTool
    config: AgentConfig
    single: Single | None = None  # where the method has one turn

    @classmethod
    def of(
        cls, endpoint: Endpoint, tool: SearchTool, config: AgentConfig, shots: Sequence[Question] = ()
    ) -> "RemoteAgent":
        """The agent of the settings; a method of the user's own, which is for tokens, is a ConfigError."""
        prompts.named(config.template)
        method = methods.fitting(config, shots)
        if method is not searched and not isinstance(method, Single):
            raise ConfigError(
                f"agent.method is {config.method!r}, which cannot be used with an address; expected "
                f"{', '.join(methods.METHODS)}"
            )
        return cls(
            endpoint, protocol_named(config.protocol), tool, config, method if isinstance(method, Single) else None
        )

    async def run(self, task: Task, order: int = 0, hear: TextListener | None = None) -> Trajectory:  # noqa: ARG002
        """Runs the episode to its end; a failure that is not the model's ends it as unusable."""
        async with self.endpoint.client() as http:
            if self.single is None:
                opening = prompts.messages(task.question, self.config.template, self.protocol)
                return await Conversation(self, task, http, hear, list(opening), self.config.searches).run()
            return await self._once(self.single, task, http, hear)

    async def _once(self, single: Single, task: Task, http: httpx.AsyncClient, hear: TextListener | None) -> Trajectory:
        """One turn, with what a search for the question found where the method retrieves."""
        found = await self.tool.search(task.question.question) if single.retrieves else ()
        talk = Conversation(self, task, http, hear, [], 0, calls=False)
        if isinstance(found, SearchUnavailable):
            talk.failure = str(found)
            return talk.trajectory(StopReason.SEARCH_UNAVAILABLE)
        documents = worded(found, self.protocol) if single.retrieves else ""
        fitting = documents[: self.config.observation_tokens * LETTERS]
        talk.messages.extend(self._asked(single, task.question, fitting))
        answered = await talk.run()
        shown = None if fitting == documents else fitting
        turns = [
            replace(turn, hits=found, formed=formed(turn, self.config.template, self.protocol), shown=shown)
            for turn in answered.turns
        ]
        return taken_at_its_word(replace(answered, turns=tuple(turns)))

    def _asked(self, single: Single, question: Question, documents: str) -> tuple[dict[str, str], ...]:
        config = self.config
        examples = "".join(example(each, config.template, self.protocol) for each in single.shots)
        return prompts.asked(question, config.template, self.protocol, documents, examples)


@dataclass(slots=True)
class Conversation:
    """The state of one run: messages and turns grow until something ends it."""

    agent: RemoteAgent
    task: Task
    http: httpx.AsyncClient
    hear: TextListener | None
    messages: list[Message]
    searches: int
    calls: bool = True
    turns: list[Turn] = field(default_factory=list)
    used: int = 0  # tokens of the conversation so far, as the server counts them or else by letters
    failure: str | None = None

    async def run(self) -> Trajectory:
        for message in self.messages:
            self._tell(str(message["content"]))
        self.used = sum(map(_tokens, self.messages))
        stop = None
        while stop is None:
            stop = await self._turn()
        return self.trajectory(stop)

    async def _turn(self) -> StopReason | None:
        """Asks, acts and observes once; the reason to end, if there is one."""
        room = self.agent.config.context_tokens - self.used
        if room <= 0:
            return StopReason.OUT_OF_TOKENS
        try:
            reply = await self._reply(room)
        except ContextFull:
            return StopReason.OUT_OF_TOKENS
        except EngineFailure as failure:
            self.failure = str(failure)
            return StopReason.ENGINE_FAILED
        said = dialogue.read(reply, self.agent.protocol)
        self._tell(said.text)
        self.messages.append(said.message)
        self.used = reply.prompt_tokens + reply.completion_tokens or self.used + _tokens(said.message)
        return await self._act(said, reply)

    async def _reply(self, room: int) -> Reply:
        agent, number = self.agent, len(self.turns)
        sampling = Sampling(
            max_tokens=min(agent.config.turn_tokens, room),
            temperature=self.task.temperature,
            stops=agent.protocol.stops,
            seed=self.task.turn_seed(number),
        )
        functions = agent.protocol.functions if self.calls else ()
        return await complete_chat(self.http, agent.endpoint, self.messages, sampling, functions)

    async def _act(self, said: Said, reply: Reply) -> StopReason | None:
        last = len(self.turns) == self.searches
        match said.action:
            case Answer():
                self._record(said, Outcome.ANSWERED, reply)
                return StopReason.ANSWERED
            case Search() | Access() if last:
                self._record(said, Outcome.REFUSED, reply)
                return StopReason.OUT_OF_TURNS
            case Search() | Access() as call:
                return await self._call(said, call, reply)
            case Malformed() as malformed:
                self._record(said, Outcome.CORRECTED, reply)
                return self._observe(said, self.agent.protocol.correct(malformed))

    async def _call(self, said: Said, call: Search | Access, reply: Reply) -> StopReason | None:
        found = await self.agent.tool.answer(call)
        if isinstance(found, SearchUnavailable):
            self.failure = str(found)
            self._record(said, Outcome.UNAVAILABLE, reply)
            return StopReason.SEARCH_UNAVAILABLE
        self._record(said, Outcome.FOUND, reply, found)
        return self._observe(said, self.agent.protocol.observe(call, found))

    def _observe(self, said: Said, observation: Observation) -> StopReason | None:
        """Adds an observation to the conversation, its body cut to the budget by letters."""
        if len(self.turns) > self.searches:
            return StopReason.OUT_OF_TURNS
        body = observation.body[: self.agent.config.observation_tokens * LETTERS]
        if body != observation.body and self.turns[-1].hits:
            self.turns[-1] = replace(self.turns[-1], shown=body)
        message = dialogue.shown(said, replace(observation, body=body))
        self.messages.append(message)
        self.used += _tokens(message)
        self._tell(f"\n\n{message['content']}\n\n")
        return None

    def _record(self, said: Said, outcome: Outcome, reply: Reply, found: Found = ()) -> None:
        hits, counts = tuple(chain.from_iterable(found)), tuple(map(len, found))
        self.turns.append(Turn(said.text, said.action, outcome, reply.completion_tokens, hits, counts, said.formed))

    def _tell(self, text: str) -> None:
        if self.hear is not None:
            self.hear(text)

    def trajectory(self, stop: StopReason) -> Trajectory:
        """What the episode was; a server that gives words gives no ids, and none are made up."""
        return self.task.trajectory(stop, self.turns, self.failure)


def _tokens(message: Message) -> int:
    return len(str(message["content"])) // LETTERS

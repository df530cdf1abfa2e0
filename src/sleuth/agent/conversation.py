"""A conversation with one model: the interface that the episode loop needs, and its token-level implementation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from sleuth.agent import prompts
from sleuth.agent.chat_template import Functions
from sleuth.agent.ledger import Ledger
from sleuth.agent.observation import Observation
from sleuth.agent.protocol import Protocol as Grammar
from sleuth.engines.base import Completion, Engine, Finish, Sampling, Session
from sleuth.model.tokens import BROKEN, Tokens
from sleuth.records import Action

OnText = Callable[[str], None]  # called with each new piece of the conversation's text


class ModelTurn(NamedTuple):
    """One generation: its text up to the first stop, the action parsed from it, and the number of sampled tokens."""

    text: str
    action: Action
    well_formed: bool
    tokens: int


class Shown(NamedTuple):
    """Whether an observation fits into the context, and the visible part of its body if the body was cut."""

    fits: bool
    cut: str | None


class Conversation(Protocol):
    """A conversation of prompts, generations and observations; the ledger stays empty for a chat-completions server."""

    @property
    def ledger(self) -> Ledger: ...

    @property
    def room(self) -> int: ...  # the number of tokens that can still be added

    def begin(self, messages: Sequence[dict[str, str]], functions: Functions = ()) -> None:
        """Add the prompt and declare these functions to the model."""

    async def generate(self, sampling: Sampling) -> ModelTurn:
        """Sample the model's next turn; raises EngineFailure if generation fails."""

    def observe(self, observation: Observation, limit: int) -> Shown:
        """Add an observation of at most `limit` tokens."""

    def count(self, messages: Sequence[dict[str, str]]) -> int:
        """Count the tokens of a prompt."""

    def truncate(self, text: str, limit: int) -> str:
        """Cut a text to at most `limit` tokens."""


@dataclass(slots=True)
class TokenConversation:
    """A conversation with an engine, token by token: sampled tokens are never decoded and re-encoded."""

    engine: Engine
    tokens: Tokens
    protocol: Grammar
    context_tokens: int
    session: Session
    on_text: OnText | None = None
    ledger: Ledger = field(default_factory=Ledger)
    _turn_ended: bool = False  # the model sampled its own end-of-turn token

    @property
    def room(self) -> int:
        return self.context_tokens - len(self.ledger)

    def begin(self, messages: Sequence[dict[str, str]], functions: Functions = ()) -> None:
        self._give(prompts.encode(messages, self.tokens, functions))

    def resume(self, ids: Sequence[int]) -> None:
        """Begin with the tokens of another conversation instead of a prompt."""
        self._give(list(ids))

    async def generate(self, sampling: Sampling) -> ModelTurn:
        listen = None if self.on_text is None else TextStream(self.tokens, self.on_text).add
        completion = await self.engine.generate(self.ledger.ids, sampling, self.session, listen)
        completion, text = trim_at_stop(completion, self.protocol.stops, self.tokens)
        self.ledger.sampled(completion)
        ended = completion.finish in (Finish.STOP, Finish.END)
        self._turn_ended = ended and bool(completion.ids) and completion.ids[-1] in self.tokens.special_ids
        action = self.protocol.parse(text)
        return ModelTurn(text, action, self.protocol.is_well_formed(text, action), len(completion.ids))

    def observe(self, observation: Observation, limit: int) -> Shown:
        fitted = observation.fit(self.tokens, min(limit, self.room - 1), turn_ended=self._turn_ended)
        if fitted is None:
            return Shown(False, "")
        ids, cut = fitted
        self._give(ids)
        return Shown(True, cut)

    def count(self, messages: Sequence[dict[str, str]]) -> int:
        return len(prompts.encode(messages, self.tokens))

    def truncate(self, text: str, limit: int) -> str:
        ids = self.tokens.encode(text)
        return text if len(ids) <= limit else self.tokens.decode(ids[:limit]).rstrip(BROKEN)

    def _give(self, ids: list[int]) -> None:
        self.ledger.given(ids)
        if self.on_text is not None:
            self.on_text(self.tokens.decode(ids))


@dataclass(slots=True)
class TextStream:
    """Streams the text of one turn; a character split across several tokens is sent once it is complete."""

    tokens: Tokens
    on_text: OnText
    _ids: list[int] = field(default_factory=list)
    _sent: int = 0

    def add(self, ids: Sequence[int]) -> None:
        """Add tokens and send the text they complete."""
        # Decoded all together, because some decoders insert spaces between tokens.
        self._ids.extend(ids)
        text = self.tokens.decode(self._ids)
        if not text.endswith(BROKEN) and len(text) != self._sent:
            self.on_text(text[self._sent :])
            self._sent = len(text)


def trim_at_stop(completion: Completion, stops: Sequence[str], tokens: Tokens) -> tuple[Completion, str]:
    """Cut a completion and its text after the first stop string.

    Any tokens that the engine returned after the stop string are dropped: they are neither shown nor trained on.
    """
    text = tokens.decode(completion.ids)
    end = end_of_first_stop(text, stops)
    if end is None:
        return completion, text
    count = len(completion.ids)
    while end_of_first_stop(tokens.decode(completion.ids[: count - 1]), stops) is not None:
        count -= 1
    kept = replace(
        completion,
        ids=completion.ids[:count],
        logprobs=completion.logprobs[:count],
        versions=completion.versions[:count],
    )
    return kept, text[:end]


def end_of_first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return the end position of the first stop string in a text, or None if there is no stop string."""
    return min((text.index(stop) + len(stop) for stop in stops if stop in text), default=None)

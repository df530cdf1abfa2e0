"""Conversations with an agent: a question may refer to earlier ones and their answers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sleuth.agent import prompts
from sleuth.agent.episode import Agent as Runner
from sleuth.agent.episode import multi_turn
from sleuth.agent.methods import count_prompt_tokens
from sleuth.agent.remote import RemoteAgent
from sleuth.errors import InputError
from sleuth.records import Question

if TYPE_CHECKING:
    from sleuth.api.agent import Agent, AgentAnswer, AgentEvent

MAX_EXCHANGES = 8
HISTORY_SHARE = 0.5  # of the context; the rest is for searches and the answer


class Dialogue:
    """A conversation: earlier questions and answers precede the next question in the prompt.

    Searches and thoughts of earlier turns are left out. The oldest exchanges are forgotten if they fill half of the
    context, or if there are more than MAX_EXCHANGES. `obstacle` says why questions stand alone, if they do.
    """

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self.exchanges: list[tuple[str, str]] = []

    @property
    def obstacle(self) -> str | None:
        match self._agent.runner:
            case Runner() as runner if runner.method is multi_turn and runner.tokens.tokenizer.chat_template is None:
                return "the model has no chat template"
            case (Runner() | RemoteAgent()) as runner:
                return None if runner.method is multi_turn else f"agent.method = {runner.config.method} has one turn"
        return "the agent has its own prompts"

    def clear(self) -> None:
        """Forget the conversation."""
        self.exchanges.clear()

    def stream(self, question: str, *, temperature: float = 0.0, seed: int = 0) -> "Iterator[AgentEvent]":
        """Ask the next question and yield what happens, as `Agent.stream` does; the last event is the answer."""
        from sleuth.api.agent import AgentAnswer

        for event in self._agent.stream(self._continue(question), temperature=temperature, seed=seed):
            if isinstance(event, AgentAnswer) and event.text is not None:
                self.exchanges.append((question.strip(), event.text))
            yield event

    def ask(self, question: str, *, temperature: float = 0.0, seed: int = 0) -> "AgentAnswer":
        """Ask the next question and return the answer."""
        from sleuth.api.agent import AgentAnswer

        *_, answer = self.stream(question, temperature=temperature, seed=seed)
        assert isinstance(answer, AgentAnswer)  # noqa: S101  the last event of a stream
        return answer

    def _continue(self, text: str) -> Question:
        if not text.strip():
            raise InputError("the question is empty; give some text")
        question, runner = Question("asked", text.strip(), (), "asked"), self._agent.runner
        if self.obstacle is not None or not isinstance(runner, Runner | RemoteAgent):
            return question
        config = runner.config
        for first in range(max(0, len(self.exchanges) - MAX_EXCHANGES), len(self.exchanges)):
            continued = prompts.continue_conversation(
                question,
                [message for exchange in self.exchanges[first:] for message in _messages(*exchange)],
                config.template,
                runner.protocol,
                abstain=bool(config.abstain),
            )
            if isinstance(runner, RemoteAgent):
                return continued  # only the server counts its tokens
            if count_prompt_tokens(runner, continued) <= HISTORY_SHARE * config.context_tokens:
                return continued
        return question


def _messages(question: str, answer: str) -> tuple[dict[str, str], dict[str, str]]:
    return {"role": "user", "content": question}, {"role": "assistant", "content": answer}

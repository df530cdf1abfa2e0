"""The methods of one turn: a question, with what a search for it found where the method retrieves, and its answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sleuth.agent import prompts
from sleuth.agent.episode import Agent, Episode, Task
from sleuth.agent.protocol import Protocol
from sleuth.agent.speech import TextListener
from sleuth.config.agent import AgentConfig
from sleuth.engines.base import Session
from sleuth.errors import ConfigError, SearchUnavailable
from sleuth.model.tokens import BROKEN, Tokens
from sleuth.records import Answer, Hit, Malformed, Outcome, Question, Search, StopReason, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Single:
    """Answers in one generation; `shots` are questions shown with their answers in the prompt.

    What was retrieved stands in the hits of the one turn, also where the prompt left no room for one, and counts as no
    search of the model's.
    """

    retrieves: bool = False
    shots: tuple[Question, ...] = ()

    def check(self, config: AgentConfig) -> None:
        """Refuses a prompt that does not fit: documents that nobody would see, or a place that nothing fills."""
        text, name = prompts.named(config.template), config.template
        remedy = f"choose another, such as its own with --set agent.prompt={config.method}"
        if self.retrieves and prompts.DOCUMENTS not in text:
            raise ConfigError(
                f"the prompt {name!r} has no {prompts.DOCUMENTS}, so what is found would not be seen; {remedy}"
            )
        if not self.retrieves and prompts.DOCUMENTS in text:
            raise ConfigError(
                f"the prompt {name!r} shows documents, and the method {config.method} searches for none; {remedy}"
            )
        if self.shots and prompts.EXAMPLES not in text:
            raise ConfigError(
                f"the prompt {name!r} has no {prompts.EXAMPLES}, so examples have no effect with it; {remedy}"
            )

    async def __call__(self, agent: Agent, task: Task, session: Session, hear: TextListener | None) -> Trajectory:
        found = await agent.tool.search(task.question.question) if self.retrieves else ()
        if isinstance(found, SearchUnavailable):
            return task.trajectory(StopReason.SEARCH_UNAVAILABLE, failure=str(found))
        alone = replace(agent, config=agent.config.model_copy(update={"searches": 0}))
        opening, documents = self._fitted(task.question, found, agent)
        answered = await Episode(alone, task, session, hear, opening).run()
        seen = None if not found or documents == worded(found, agent.protocol) else documents
        turns = [
            replace(turn, hits=found, formed=formed(turn, agent.config.template, agent.protocol), shown=seen)
            for turn in answered.turns
        ]
        if found and not turns and answered.stop is StopReason.OUT_OF_TOKENS:
            unread = Malformed("the prompt left no room")
            turns.append(Turn("", unread, Outcome.REFUSED, 0, found, formed=False, shown=""))
        return taken_at_its_word(replace(answered, turns=tuple(turns)))

    def opening(self, question: Question, hits: Sequence[Hit], agent: Agent) -> list[int]:
        """The ids of the prompt; where it would leave no room for a turn, the documents are cut further."""
        return self._fitted(question, hits, agent)[0]

    def _fitted(self, question: Question, hits: Sequence[Hit], agent: Agent) -> tuple[list[int], str]:
        """The ids of the prompt, and the documents as they stand in it."""
        config, protocol, tokens = agent.config, agent.protocol, agent.tokens
        documents = shown(hits, protocol, tokens, config.observation_tokens) if self.retrieves else ""
        ids = prompts.encode(self.messages(question, documents, agent), tokens)
        if not self.retrieves or len(ids) + config.turn_tokens <= config.context_tokens:
            return ids, documents
        room = config.context_tokens - len(prompts.encode(self.messages(question, "", agent), tokens))
        # Half of the room is for the answer, where there is not enough for a whole turn.
        limit = min(config.observation_tokens, max(room - config.turn_tokens, room // 2, 0))
        documents = shown(hits, protocol, tokens, limit)
        return prompts.encode(self.messages(question, documents, agent), tokens), documents

    def messages(self, question: Question, documents: str, agent: Agent) -> tuple[dict[str, str], ...]:
        """What the model is asked."""
        config, protocol = agent.config, agent.protocol
        examples = "".join(example(each, config.template, protocol) for each in self.shots)
        return prompts.asked(question, config.template, protocol, documents, examples)


def shown(hits: Sequence[Hit], protocol: Protocol, tokens: Tokens, limit: int) -> str:
    """The documents as an observation words them, which keeps them from speaking the grammar, cut by tokens."""
    body = worded(hits, protocol)
    ids = tokens.encode(body)
    return body if len(ids) <= limit else tokens.decode(ids[:limit]).rstrip(BROKEN)


def worded(hits: Sequence[Hit], protocol: Protocol) -> str:
    """The documents as an observation words them, whole."""
    return protocol.observe(Search(""), [hits]).body


def taken_at_its_word(trajectory: Trajectory) -> Trajectory:
    """A reply in no form is the answer: a model that was never taught the form answers all the same.

    A thought that was cut off is none: what it names on the way would be taken for what it comes to.
    """
    last = trajectory.turns[-1] if trajectory.turns else None
    if last is None or trajectory.stop is not StopReason.OUT_OF_TURNS or not isinstance(last.action, Malformed):
        return trajectory
    text = last.text.rpartition("</think>")[2].replace("<answer>", "").strip()
    if not text or "<think>" in text:
        return trajectory
    said = replace(last, action=Answer(text), outcome=Outcome.ANSWERED)
    return replace(trajectory, turns=(*trajectory.turns[:-1], said), stop=StopReason.ANSWERED)


def formed(turn: Turn, template: str, protocol: Protocol) -> bool:
    """Whether a turn has the form that its prompt asks for: where no thought is, it is the answer and nothing else."""
    if prompts.THOUGHT in prompts.named(template):
        return turn.formed
    return isinstance(turn.action, Answer) and _letters(turn.text) == _letters(protocol.act(turn.action))


def example(question: Question, template: str, protocol: Protocol) -> str:
    """A question with its answer in the form that the prompt asks for."""
    answer = spoken(question.golden_answers[0], template, protocol)
    return f"Question: {prompts.marked(question)}\n{answer}\n\n"


def spoken(answer: str, template: str, protocol: Protocol, thought: str | None = None) -> str:
    """An answer as the model would give it, behind a thought where the prompt asks for one."""
    said = protocol.act(Answer(answer))
    if prompts.THOUGHT not in prompts.named(template):
        return said
    return f"<think> {thought or f'The answer is {answer}.'} </think> {said}"


def _letters(text: str) -> str:
    """The text without its white space."""
    return "".join(text.split())

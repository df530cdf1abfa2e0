"""Methods of one turn: a question, for `rag` with the passages found for it, and its answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sleuth.agent import prompts
from sleuth.agent.conversation import Conversation
from sleuth.agent.episode import ConfiguredRunner, Episode, Task
from sleuth.agent.protocol import Protocol
from sleuth.config.agent import AgentConfig
from sleuth.errors import ConfigError, SearchUnavailable
from sleuth.records import Answer, Hit, Malformed, Outcome, Question, StopReason, ToolCall, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class OneTurn:
    """Answers in one generation; `shots` are example questions shown with their answers.

    Retrieved passages are the hits of the one turn, even if the prompt had no room for them, and do not count as a
    search of the model.
    """

    retrieves: bool = False
    shots: tuple[Question, ...] = ()

    def check(self, config: AgentConfig) -> None:
        """Raise ConfigError if the prompt template does not fit the method."""
        text, name = prompts.load_template(config.template), config.template
        remedy = f"choose another prompt, for example --set agent.prompt={config.method}"
        if self.retrieves and prompts.DOCUMENTS not in text:
            raise ConfigError(f"the prompt {name!r} has no {prompts.DOCUMENTS} for the retrieved passages; {remedy}")
        if not self.retrieves and prompts.DOCUMENTS in text:
            raise ConfigError(
                f"the prompt {name!r} has {prompts.DOCUMENTS}, but the method {config.method} retrieves nothing; "
                f"{remedy}"
            )
        if self.shots and prompts.EXAMPLES not in text:
            raise ConfigError(f"the prompt {name!r} has no {prompts.EXAMPLES}, so --shots has no effect; {remedy}")

    async def __call__(self, agent: ConfiguredRunner, task: Task, conversation: Conversation) -> Trajectory:
        hits = await agent.tools.search(task.question.question) if self.retrieves else ()
        if isinstance(hits, SearchUnavailable):
            return task.trajectory(StopReason.SEARCH_UNAVAILABLE, failure=str(hits))
        documents = describe(hits, agent.protocol) if self.retrieves else ""
        shown = self._fit(task.question, documents, agent, conversation)
        conversation.begin(self.messages(task.question, shown, agent))
        trajectory = await Episode(agent, task, conversation, max_turns=1).run()
        cut = None if not hits or shown == documents else shown
        template = agent.config.template
        turns = [
            replace(turn, hits=hits, formed=is_well_formed(turn, template, agent.protocol), shown=cut)
            for turn in trajectory.turns
        ]
        if hits and not turns and trajectory.stop is StopReason.OUT_OF_TOKENS:
            unread = Malformed("the prompt left no room")
            turns.append(Turn("", unread, Outcome.REFUSED, 0, hits, formed=False, shown=""))
        return accept_plain_answer(replace(trajectory, turns=tuple(turns)))

    def messages(self, question: Question, documents: str, agent: ConfiguredRunner) -> tuple[dict[str, str], ...]:
        """The prompt."""
        config, protocol = agent.config, agent.protocol
        examples = "".join(_example(shot, config.template, protocol) for shot in self.shots)
        return prompts.fill(question, config.template, protocol, documents, examples)

    def _fit(self, question: Question, documents: str, agent: ConfiguredRunner, conversation: Conversation) -> str:
        """The documents cut to the observation budget, and further if the prompt would leave no room for a turn."""
        if not self.retrieves:
            return ""
        config = agent.config
        shown = conversation.truncate(documents, config.observation_tokens)
        if conversation.count(self.messages(question, shown, agent)) + config.turn_tokens <= config.context_tokens:
            return shown
        room = config.context_tokens - conversation.count(self.messages(question, "", agent))
        # If there is no room for a whole turn, half of the room is for the answer.
        return conversation.truncate(
            documents, min(config.observation_tokens, max(room - config.turn_tokens, room // 2, 0))
        )


def describe(hits: Sequence[Hit], protocol: Protocol) -> str:
    """Passages as an observation words them, which keeps them from imitating the grammar."""
    return protocol.observe(ToolCall.search(""), (tuple(hits),)).body


def accept_plain_answer(trajectory: Trajectory) -> Trajectory:
    """Accept a reply without answer tags as the answer: not every model was taught them.

    A truncated thought is not accepted: it may mention a candidate that it goes on to reject.
    """
    last = trajectory.turns[-1] if trajectory.turns else None
    if last is None or trajectory.stop is not StopReason.OUT_OF_TURNS or not isinstance(last.action, Malformed):
        return trajectory
    text = last.text.rpartition("</think>")[2].replace("<answer>", "").strip()
    if not text or "<think>" in text:
        return trajectory
    answered = replace(last, action=Answer(text), outcome=Outcome.ANSWERED)
    return replace(trajectory, turns=(*trajectory.turns[:-1], answered), stop=StopReason.ANSWERED)


def is_well_formed(turn: Turn, template: str, protocol: Protocol) -> bool:
    """Whether a turn has the format of its prompt: without <think> in the prompt, the answer and nothing else."""
    if prompts.THOUGHT in prompts.load_template(template):
        return turn.formed
    if not isinstance(turn.action, Answer):
        return False
    return "".join(turn.text.split()) == "".join(protocol.write(turn.action).split())


def write_answer(answer: str, template: str, protocol: Protocol, thought: str | None = None) -> str:
    """An answer as the model would give it, after a thought if the prompt asks for one."""
    written = protocol.write(Answer(answer))
    if prompts.THOUGHT not in prompts.load_template(template):
        return written
    return f"<think> {thought or f'The answer is {answer}.'} </think> {written}"


def _example(question: Question, template: str, protocol: Protocol) -> str:
    answer = write_answer(question.golden_answers[0], template, protocol)
    return f"Question: {prompts.with_question_mark(question)}\n{answer}\n\n"

"""Methods of answering a question, built in or imported: each runs a task and returns its trajectory."""

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from operator import attrgetter

from sleuth.agent import prompts
from sleuth.agent.conversation import Conversation, OnText, TokenConversation
from sleuth.agent.episode import Agent, ConfiguredRunner, Episode, Method, multi_turn
from sleuth.agent.protocol import Protocol
from sleuth.agent.task import Task
from sleuth.config.agent import AgentConfig
from sleuth.config.hooks import IMPORT, Contract, describe_exception, import_function, resolve
from sleuth.engines.base import Session
from sleuth.errors import ConfigError, EngineFailure, FunctionFailed, SearchUnavailable, UserError
from sleuth.records import (
    THINK_CLOSE,
    THINK_OPEN,
    Answer,
    Hit,
    Malformed,
    Outcome,
    Question,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
)


@dataclass(frozen=True, slots=True)
class OneTurn:
    """Answers in one turn, after a search for the question if `retrieves` is set; `shots` are examples in the prompt.

    Retrieved passages are recorded as the hits of the turn, even if they did not fit into the prompt. They do not count
    as a search by the model.
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
        turns = [
            replace(turn, hits=hits, formed=_is_well_formed(turn, agent.config.template, agent.protocol), shown=cut)
            for turn in trajectory.turns
        ]
        if hits and not turns and trajectory.stop is StopReason.OUT_OF_TOKENS:
            unread = Malformed("the prompt left no room")
            turns.append(Turn("", unread, Outcome.REFUSED, 0, hits, formed=False, shown=""))
        return _accept_plain_answer(replace(trajectory, turns=tuple(turns)))

    def messages(self, question: Question, documents: str, agent: ConfiguredRunner) -> tuple[dict[str, str], ...]:
        template, protocol = agent.config.template, agent.protocol
        answers = [write_answer(shot.golden_answers[0], template, protocol) for shot in self.shots]
        shots = zip(map(prompts.with_question_mark, self.shots), answers, strict=True)
        examples = "".join(f"Question: {text}\n{answer}\n\n" for text, answer in shots)
        return prompts.fill(question, template, protocol, documents, examples, abstain=bool(agent.config.abstain))

    def _fit(self, question: Question, documents: str, agent: ConfiguredRunner, conversation: Conversation) -> str:
        """Cut the documents to the observation budget, or further if too few tokens would remain for a turn."""
        if not self.retrieves:
            return ""
        config = agent.config
        shown = conversation.truncate(documents, config.observation_tokens)
        if conversation.count(self.messages(question, shown, agent)) + config.turn_tokens <= config.context_tokens:
            return shown
        room = config.context_tokens - conversation.count(self.messages(question, "", agent))
        # If a whole turn does not fit, half of the remaining tokens are reserved for the answer.
        return conversation.truncate(
            documents, min(config.observation_tokens, max(room - config.turn_tokens, room // 2, 0))
        )


def describe(hits: Sequence[Hit], protocol: Protocol) -> str:
    """Format passages as an observation does, with grammar tags neutralised."""
    return protocol.observe(ToolCall.search(""), (tuple(hits),)).body


def _accept_plain_answer(trajectory: Trajectory) -> Trajectory:
    """Accept a reply without answer tags as the answer.

    Not every model is trained to use the tags. A truncated thought is not accepted: it may mention a candidate that the
    model would go on to reject.
    """
    last = trajectory.turns[-1] if trajectory.turns else None
    if last is None or trajectory.stop is not StopReason.OUT_OF_TURNS or not isinstance(last.action, Malformed):
        return trajectory
    text = last.text.rpartition(THINK_CLOSE)[2].replace("<answer>", "").strip()
    if not text or THINK_OPEN in text:
        return trajectory
    answered = replace(last, action=Answer(text), outcome=Outcome.ANSWERED)
    return replace(trajectory, turns=(*trajectory.turns[:-1], answered), stop=StopReason.ANSWERED)


def _is_well_formed(turn: Turn, template: str, protocol: Protocol) -> bool:
    """Whether a turn has the format that its prompt requires: only an answer if the prompt does not ask for <think>."""
    if THINK_OPEN in prompts.load_template(template):
        return turn.formed
    if not isinstance(turn.action, Answer):
        return False
    return "".join(turn.text.split()) == "".join(protocol.write(turn.action).split())


def write_answer(answer: str, template: str, protocol: Protocol, thought: str | None = None) -> str:
    """Write an answer as the model would, after a thought if the prompt requires one."""
    written = protocol.write(Answer(answer))
    if THINK_OPEN not in prompts.load_template(template):
        return written
    return f"{THINK_OPEN} {thought or f'The answer is {answer}.'} {THINK_CLOSE} {written}"


METHODS: dict[str, Method] = {
    "search": multi_turn,
    "direct": OneTurn(),
    "cot": OneTurn(),
    "rag": OneTurn(retrieves=True),
}
# The tag that identifies the grammar described in a prompt, and the protocol of that grammar.
GRAMMARS = {"<search>": "tags", "<tool_call>": "tools"}
CONTRACT = Contract(("agent", "task", "session", "on_text"), "a Trajectory", is_async=True)


def find_method(name: str) -> Method:
    """Return a built-in method, or import the user's function `async (agent, task, session, on_text)`."""
    if name.startswith(IMPORT):
        return UserMethod(name, import_function(name, CONTRACT))
    return resolve("agent.method", name, METHODS, CONTRACT)


def make_method(config: AgentConfig, shots: Sequence[Question] = ()) -> Method:
    """Build the configured method; raises ConfigError if the prompt or the examples do not fit it."""
    method = find_method(config.method)
    if isinstance(method, OneTurn):
        method = replace(method, shots=tuple(shots))
        method.check(config)
    elif shots:
        raise ConfigError(f"--shots has no effect with the method {config.method}; choose direct, cot or rag")
    return method


@dataclass(frozen=True, slots=True)
class UserMethod:
    """Wraps an imported method; raises FunctionFailed if the method raises or returns an invalid result."""

    name: str
    function: Callable[[Agent, Task, Session, OnText | None], Awaitable[Trajectory]]

    async def __call__(self, agent: ConfiguredRunner, task: Task, conversation: Conversation) -> Trajectory:
        if not isinstance(agent, Agent) or not isinstance(conversation, TokenConversation):
            raise ConfigError(f"agent.method = {self.name!r} works on tokens and needs a local model, not a server")
        try:
            trajectory = await self.function(agent, task, conversation.session, conversation.on_text)
        except EngineFailure as failure:
            return task.trajectory(StopReason.ENGINE_FAILED, failure=str(failure))
        except SearchUnavailable as failure:
            return task.trajectory(StopReason.SEARCH_UNAVAILABLE, failure=str(failure))
        except UserError:  # for example a search that is missing in a recording
            raise
        except Exception as error:
            raise FunctionFailed(describe_exception(self.name, error)) from error
        if problem := _problem(trajectory, task):
            raise FunctionFailed(f"{self.name!r} returned {problem}")
        return trajectory


def _problem(result: object, task: Task) -> str | None:
    """Describe what is wrong with a method's result; None if the result is valid."""
    if not isinstance(result, Trajectory):
        return f"{type(result).__name__}; expected a Trajectory"
    if not isinstance(result.stop, StopReason) or not all(isinstance(turn, Turn) for turn in result.turns):
        return f"a Trajectory with stop = {result.stop!r} and turns = {result.turns!r}; expected a StopReason and Turns"
    identity = attrgetter("question", "group", "sample", "step")
    if identity(result) != identity(task):
        return "a Trajectory of another task (question, group, sample, step); expected that of the given task"
    problems = (_segment_problem(result, index) for index in range(len(result.segments)))
    return next((f"a Trajectory with {problem}" for problem in problems if problem), None)


def _segment_problem(trajectory: Trajectory, index: int) -> str | None:
    """Describe what is wrong with a segment; None if it is valid."""
    segment = trajectory.segments[index]
    name, earlier = f"segment {index}", trajectory.segments[:index]
    ids, sampled = len(segment.ids), sum(segment.sampled)
    logprobs, versions = len(segment.logprobs), len(segment.versions)
    if len(segment.sampled) != ids or not sampled == logprobs == versions:
        return (
            f"{name} of {ids} ids with {len(segment.sampled)} origins, {sampled} of them sampled, {logprobs} logprobs "
            f"and {versions} versions; expected one origin per id, and one logprob and version per sampled id"
        )
    if not all(map(isfinite, segment.logprobs)):
        return f"a logprob in {name} that is not finite; expected the logprobs of the engine"
    if segment.parent is not None and not 0 <= segment.parent < index:
        return f"{name} whose parent is {segment.parent}; expected an earlier segment, or None"
    prefix = earlier[segment.parent].ids[: segment.shared] if segment.parent is not None else ()
    if len(prefix) != segment.shared or segment.ids[: segment.shared] != prefix or any(segment.sampled[: len(prefix)]):
        return f"{name} with shared = {segment.shared}; expected that many tokens of its parent, given here"
    called = sum(count for _, count in segment.calls)
    if segment.calls and (called != sampled or not all(0 <= turn < len(trajectory.turns) for turn, _ in segment.calls)):
        return (
            f"{name} whose calls are {segment.calls} for {sampled} sampled ids and {len(trajectory.turns)} turns; "
            "expected the turn and the number of sampled ids of each call"
        )
    if segment.temperatures and (len(segment.temperatures) != sampled or min(segment.temperatures) <= 0):
        return f"{name} with temperatures {segment.temperatures}; expected one above 0 per sampled id, or none"
    return None


def require_prompts(agent: ConfiguredRunner, questions: Iterable[Question]) -> None:
    """Raise ConfigError if the method uses a question's own prompt that is written for another protocol."""
    if agent.config.method != "search":
        return
    call = agent.protocol.write(ToolCall.search("Oslo"))
    for question in questions:
        text = "\n".join(message["content"] for message in question.prompt or ())
        explained = [tag for tag in GRAMMARS if tag in text]
        if explained and not any(tag in call for tag in explained):
            raise ConfigError(
                f"the prompt of question {question.id!r} searches with {explained[0]}, which agent.protocol does not "
                f"parse; pass --set agent.protocol={GRAMMARS[explained[0]]}, or remove the prompts from the questions"
            )


def describe_overlong(agent: Agent, questions: Sequence[Question], what: str) -> str | None:
    """Return a warning if some prompts fill the context, else None; raises ConfigError if all prompts do."""
    if not isinstance(agent.method, OneTurn) and agent.method is not multi_turn:
        return None  # a user's method writes its own prompts
    limit = agent.config.context_tokens
    # A token has at least one byte, so only long texts need to be tokenized.
    frame = count_prompt_tokens(agent, Question("", "?", ("",), ""))
    texts = ("".join(message["content"] for message in each.prompt or ()) or each.question for each in questions)
    sizes = (frame + len(text.encode(errors="surrogatepass")) for text in texts)
    long = [question for question, size in zip(questions, sizes, strict=True) if size >= limit]
    lengths = [count_prompt_tokens(agent, question) for question in long]
    count = sum(length >= limit for length in lengths)
    if not count:
        return None
    problem = (
        f"{count:,} of {len(questions):,} {what} have a prompt of agent.context_tokens = {limit:,} tokens or more (the "
        f"longest has {max(lengths):,}), which leaves no room for an answer"
    )
    if count == len(questions):
        raise ConfigError(f"{problem}; raise agent.context_tokens, or choose a shorter agent.prompt")
    return f"{problem}: they count as wrong; raise agent.context_tokens, or remove them"


def count_prompt_tokens(agent: Agent, question: Question) -> int:
    """Number of tokens in a question's prompt, before any retrieval."""
    if isinstance(agent.method, OneTurn):
        return len(prompts.encode(agent.method.messages(question, "", agent), agent.tokens))
    config = agent.config
    return len(prompts.render(question, config.template, agent.protocol, agent.tokens, abstain=bool(config.abstain)))


def draw_shots(questions: Sequence[Question], count: int, seed: int) -> tuple[Question, ...]:
    """Draw example questions at random; with the same seed, a smaller draw is a prefix of a larger draw."""
    questions = [question for question in questions if question.golden_answers]  # unanswerable ones show no answer
    if count > len(questions):
        raise ConfigError(f"--shots is {count}, but there are only {len(questions)} questions to draw from; lower it")
    order = list(questions)
    random.Random(seed).shuffle(order)
    return tuple(order[:count])

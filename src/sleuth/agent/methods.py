"""The methods of answering a question, by name or by `import:`: each runs a task to its trajectory."""

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from sleuth.agent import prompts
from sleuth.agent.conversation import Conversation, OnText, TokenConversation
from sleuth.agent.episode import Agent, ConfiguredRunner, Method, Task, multi_turn
from sleuth.agent.one_turn import OneTurn
from sleuth.config.agent import AgentConfig
from sleuth.config.hooks import IMPORT, Contract, describe_exception, import_function, resolve
from sleuth.engines.base import Session
from sleuth.errors import ConfigError, EngineFailure, FunctionFailed, SearchUnavailable, UserError
from sleuth.records import Question, StopReason, Trajectory, Turn

METHODS: dict[str, Method] = {
    "search": multi_turn,
    "direct": OneTurn(),
    "cot": OneTurn(),
    "rag": OneTurn(retrieves=True),
}
CONTRACT = Contract(("agent", "task", "session", "on_text"), "a Trajectory", is_async=True)

UserFunction = Callable[[Agent, Task, Session, OnText | None], Awaitable[Trajectory]]


def find_method(name: str) -> Method:
    """A method by name, or a user's coroutine function of agent, task, session and on_text by `import:`."""
    if name.startswith(IMPORT):
        return UserMethod(name, import_function(name, CONTRACT))
    return resolve("agent.method", name, METHODS, CONTRACT)


def make_method(config: AgentConfig, shots: Sequence[Question] = ()) -> Method:
    """The configured method with its example questions; a prompt or examples that do not fit it are a ConfigError."""
    method = find_method(config.method)
    if isinstance(method, OneTurn):
        method = replace(method, shots=tuple(shots))
        method.check(config)
    elif shots:
        raise ConfigError(f"--shots has no effect with the method {config.method}; choose direct, cot or rag")
    return method


@dataclass(frozen=True, slots=True)
class UserMethod:
    """A method by `import:`; an exception or an invalid result is a FunctionFailed that names it."""

    name: str
    function: UserFunction

    async def __call__(self, agent: ConfiguredRunner, task: Task, conversation: Conversation) -> Trajectory:
        if not isinstance(agent, Agent) or not isinstance(conversation, TokenConversation):
            raise ConfigError(f"agent.method is {self.name!r}, which needs an engine that speaks tokens")
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
    """The defect of a method's result and the expectation; None if it is valid."""
    if not isinstance(result, Trajectory):
        return f"{type(result).__name__}; expected a Trajectory"
    if not isinstance(result.stop, StopReason) or not all(isinstance(turn, Turn) for turn in result.turns):
        return f"a Trajectory with stop = {result.stop!r} and turns = {result.turns!r}; expected a StopReason and Turns"
    if (result.question, result.group, result.sample, result.step) != (
        task.question,
        task.group,
        task.sample,
        task.step,
    ):
        return "a Trajectory of another task (question, group, sample, step); expected that of the given task"
    ids, sampled = len(result.ids), sum(result.sampled)
    logprobs, versions = len(result.logprobs), len(result.versions)
    if len(result.sampled) != ids or not sampled == logprobs == versions:
        return (
            f"a Trajectory of {ids} ids with {len(result.sampled)} origins, {sampled} of them sampled, {logprobs} "
            f"logprobs and {versions} versions; expected one origin per id, and one logprob and version per sampled id"
        )
    if not all(map(isfinite, result.logprobs)):
        return "a Trajectory with a logprob that is not finite; expected the logprobs of the engine"
    return None


def require_prompts(agent: ConfiguredRunner, questions: Iterable[Question]) -> None:
    """Raise ConfigError if the method uses the questions' own prompts, and one is for another protocol."""
    if agent.config.method == "search":
        prompts.require_protocol(questions, agent.protocol)


def describe_overlong(agent: Agent, questions: Sequence[Question], what: str) -> str | None:
    """A sentence about prompts that leave no room for a single token, or None; a ConfigError if all are so long."""
    limit = agent.config.context_tokens
    # A token has at least one byte, so only long texts need to be tokenized.
    frame = len(_prompt(agent, Question("", "?", ("",), "")) or ())
    long = [question for question in questions if frame + _bytes(question) >= limit]
    lengths = [len(prompt) for question in long if (prompt := _prompt(agent, question)) is not None]
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


def _prompt(agent: Agent, question: Question) -> list[int] | None:
    """The shortest possible prompt; None if a user's method decides."""
    if isinstance(agent.method, OneTurn):
        return prompts.encode(agent.method.messages(question, "", agent), agent.tokens)
    if agent.method is multi_turn:
        return prompts.render(question, agent.config.template, agent.protocol, agent.tokens)
    return None


def _bytes(question: Question) -> int:
    own = "".join(message["content"] for message in question.prompt or ())
    return len((own or question.question).encode(errors="surrogatepass"))


def draw_shots(questions: Sequence[Question], count: int, seed: int) -> tuple[Question, ...]:
    """Draw example questions by seed; a smaller draw is a prefix of a larger one."""
    if count > len(questions):
        raise ConfigError(f"--shots is {count}, but there are only {len(questions)} questions to draw from; lower it")
    order = list(questions)
    random.Random(seed).shuffle(order)
    return tuple(order[:count])

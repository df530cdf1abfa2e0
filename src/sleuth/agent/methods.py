"""The ways of answering a question, by name: each runs a task to its trajectory."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sleuth.agent import prompts
from sleuth.agent.answerer import Answerer
from sleuth.agent.episode import Agent, Method, searched
from sleuth.agent.single import Single
from sleuth.agent.user_method import CONTRACT, UserMethod
from sleuth.config.agent import AgentConfig
from sleuth.config.hooks import IMPORT, resolve
from sleuth.errors import ConfigError
from sleuth.records import Question

METHODS: dict[str, Method] = {
    "search": searched,
    "direct": Single(),
    "cot": Single(),
    "rag": Single(retrieves=True),
}


def named(name: str) -> Method:
    """A method by name, or by `import:package.function`, a coroutine function of agent, task, session and listener."""
    method = resolve("agent.method", name, METHODS, CONTRACT)
    return UserMethod(name, method) if name.startswith(IMPORT) else method


def fitting(config: AgentConfig, shots: Sequence[Question] = ()) -> Method:
    """The method of the settings with its examples; a prompt or examples that do not fit it are refused."""
    method = named(config.method)
    if isinstance(method, Single):
        method = replace(method, shots=tuple(shots))
        method.check(config)
    elif shots:
        raise ConfigError(f"--shots has no effect with the method {config.method}; choose direct, cot or rag")
    return method


def require_prompts(agent: Answerer, questions: Iterable[Question]) -> None:
    """Refuses questions whose own prompts are not for the agent's protocol, where its method uses them."""
    if agent.config.method == "search":
        prompts.require_spoken(questions, agent.protocol)


def overlong(agent: Agent, questions: Sequence[Question], what: str) -> str | None:
    """How many prompts leave no room for a single token, in a sentence; None where all fit.

    Such a question cannot be answered. Where that holds for all of them, the settings are wrong.
    """
    limit = agent.config.context_tokens
    # Few have to be tokenized: a token is one byte at least, so a short text has no more tokens than bytes.
    frame = len(_prompt(agent, Question("", "?", ("",), "")) or ())
    long = [each for each in questions if frame + _bytes(each) >= limit]
    lengths = [len(prompt) for each in long if (prompt := _prompt(agent, each)) is not None]
    count = sum(length >= limit for length in lengths)
    if not count:
        return None
    told = (
        f"{count:,} of {len(questions):,} {what} have a prompt of agent.context_tokens = {limit:,} tokens or more (the "
        f"longest has {max(lengths):,}), which leaves no room for an answer"
    )
    if count == len(questions):
        raise ConfigError(f"{told}; raise agent.context_tokens, or choose a shorter agent.prompt")
    return f"{told}: they count as wrong; raise agent.context_tokens, or take them out"


def _prompt(agent: Agent, question: Question) -> list[int] | None:
    """What an episode begins with at least; None where a method of the user's own decides."""
    if isinstance(agent.method, Single):
        return prompts.encode(agent.method.messages(question, "", agent), agent.tokens)
    if agent.method is searched:
        return prompts.render(question, agent.config.template, agent.protocol, agent.tokens)
    return None


def _bytes(question: Question) -> int:
    own = "".join(message["content"] for message in question.prompt or ())
    return len((own or question.question).encode(errors="surrogatepass"))


def drawn(questions: Sequence[Question], count: int, seed: int) -> tuple[Question, ...]:
    """So many questions to show as examples, drawn by seed: the fewer are among the more."""
    if count > len(questions):
        raise ConfigError(f"{count} examples asked for, and there are {len(questions)} questions to draw them from")
    order = list(questions)
    random.Random(seed).shuffle(order)
    return tuple(order[:count])

"""The ways of answering a question, by name: each runs a task to its trajectory."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sleuth.agent import prompts
from sleuth.agent.answerer import Answerer
from sleuth.agent.episode import Method, searched
from sleuth.agent.single import Single
from sleuth.agent.user_method import CONTRACT, UserMethod
from sleuth.config.agent import AgentConfig
from sleuth.errors import ConfigError
from sleuth.hooks import IMPORT, chosen
from sleuth.records import Question

METHODS: dict[str, Method] = {
    "search": searched,
    "direct": Single(),
    "cot": Single(),
    "rag": Single(retrieves=True),
}


def named(name: str) -> Method:
    """A method by name, or by `import:package.function`, a coroutine function of agent, task, seat and listener."""
    method = chosen("agent.method", name, METHODS, CONTRACT)
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


def drawn(questions: Sequence[Question], count: int, seed: int) -> tuple[Question, ...]:
    """So many questions to show as examples, drawn by seed: the fewer are among the more."""
    if count > len(questions):
        raise ConfigError(f"{count} examples asked for, and there are {len(questions)} questions to draw them from")
    order = list(questions)
    random.Random(seed).shuffle(order)
    return tuple(order[:count])

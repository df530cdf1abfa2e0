"""The function behind `agent.run`; imports nothing heavy, because workers need it."""

from collections.abc import Callable
from math import isfinite
from typing import Any, SupportsFloat

from sleuth.agent.task import Task
from sleuth.config.hooks import Contract, import_function
from sleuth.errors import FunctionFailed
from sleuth.gateway.endpoint import Endpoint
from sleuth.records import Score

CONTRACT = Contract(("task", "llm"), "a number, a Reward or None", is_async=None)

VERIFIERS = "verifiers:"

AgentFunction = Callable[[Task, Endpoint], Any]


def load_agent(spec: str) -> AgentFunction:
    """Import the agent of `agent.run`; raises ConfigError if it cannot be called as run(task, llm)."""
    if spec.startswith(VERIFIERS):
        from sleuth.gateway.verifiers_env import EnvironmentAgent  # needs the extra of that name

        return EnvironmentAgent(spec.removeprefix(VERIFIERS))
    return import_function(spec, CONTRACT)


def as_score(spec: str, value: object) -> Score | None:
    """Return the reward that an agent returned, or None; raises FunctionFailed if it is not a reward."""
    match value:
        case None:
            return None
        case Score(total, parts, turns):
            named = {name: _number(spec, each) for name, each in parts.items()}
            return Score(_number(spec, total), named, tuple(_number(spec, each) for each in turns))
    return Score(_number(spec, value))


def _number(spec: str, value: object) -> float:
    if not isinstance(value, SupportsFloat) or getattr(value, "ndim", 0) > 0:
        shown = f"{value!r:.60} (type {type(value).__name__})"
        raise FunctionFailed(f"{spec!r} returned {shown}; expected {CONTRACT.returns}")
    if not isfinite(number := float(value)):
        raise FunctionFailed(f"{spec!r} returned {number}; expected a finite number")
    return number

"""Sleuth trains language models to reason and to search."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sleuth.agent.task import Task
    from sleuth.api.agent import Agent
    from sleuth.api.gateway import Gateway
    from sleuth.api.index import Index
    from sleuth.api.run import Run
    from sleuth.api.trainer import Trainer
    from sleuth.evaluate.results import Evaluation
    from sleuth.gateway.endpoint import Endpoint
    from sleuth.records import Score as Reward

__version__ = "0.1.0"
__all__ = ["Agent", "Endpoint", "Evaluation", "Gateway", "Index", "Reward", "Run", "Task", "Trainer", "__version__"]

# The module and the name of each class, imported when it is first used.
_HOMES = {
    "Agent": ("sleuth.api.agent", "Agent"),
    "Endpoint": ("sleuth.gateway.endpoint", "Endpoint"),
    "Evaluation": ("sleuth.evaluate.results", "Evaluation"),
    "Gateway": ("sleuth.api.gateway", "Gateway"),
    "Index": ("sleuth.api.index", "Index"),
    "Reward": ("sleuth.records", "Score"),
    "Run": ("sleuth.api.run", "Run"),
    "Task": ("sleuth.agent.task", "Task"),
    "Trainer": ("sleuth.api.trainer", "Trainer"),
}


if not TYPE_CHECKING:  # type checkers would otherwise accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'sleuth' has no attribute {name!r}")
        module, attribute = _HOMES[name]
        return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

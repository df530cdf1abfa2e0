"""Who can be asked: anything that runs a task to its trajectory."""

from typing import Protocol as TypingProtocol

from sleuth.agent.episode import Task
from sleuth.agent.protocol import Protocol
from sleuth.agent.speech import TextListener
from sleuth.config.agent import AgentConfig
from sleuth.records import Trajectory


class Runner(TypingProtocol):
    """Runs tasks."""

    async def run(self, task: Task, order: int = 0, hear: TextListener | None = None) -> Trajectory:
        """Runs the episode to its end; a failure that is not the model's ends it as unusable."""
        ...


class Answerer(Runner, TypingProtocol):
    """Runs tasks by its settings, in a protocol."""

    @property
    def protocol(self) -> Protocol: ...
    @property
    def config(self) -> AgentConfig: ...

"""A method by `import:`: what it raises or returns wrongly is a FunctionFailed that names it."""

from dataclasses import dataclass
from math import isfinite

from sleuth.agent.episode import Agent, Method, Task
from sleuth.agent.speech import TextListener
from sleuth.config.hooks import Contract, describe_exception
from sleuth.engines.base import Session
from sleuth.errors import EngineFailure, FunctionFailed, SearchUnavailable, UserError
from sleuth.records import StopReason, Trajectory, Turn

CONTRACT = Contract(("agent", "task", "session", "hear"), "a Trajectory", is_async=True)


@dataclass(frozen=True, slots=True)
class UserMethod:
    """The user's method behind checks; see Method."""

    name: str
    function: Method

    async def __call__(self, agent: Agent, task: Task, session: Session, hear: TextListener | None) -> Trajectory:
        try:
            found = await self.function(agent, task, session, hear)
        except EngineFailure as failure:
            return task.trajectory(StopReason.ENGINE_FAILED, failure=str(failure))
        except SearchUnavailable as failure:
            return task.trajectory(StopReason.SEARCH_UNAVAILABLE, failure=str(failure))
        except UserError:  # such as a search that a recording does not hold
            raise
        except Exception as error:
            raise FunctionFailed(describe_exception(self.name, error)) from error
        if problem := _problem(found, task):
            raise FunctionFailed(f"{self.name!r} returned {problem}")
        return found


def _problem(found: object, task: Task) -> str | None:
    """What is wrong with the result of a method, with what was expected."""
    if not isinstance(found, Trajectory):
        return f"{type(found).__name__}; expected a Trajectory"
    if not isinstance(found.stop, StopReason) or not all(isinstance(turn, Turn) for turn in found.turns):
        return f"a Trajectory with stop = {found.stop!r} and turns = {found.turns!r}; expected a StopReason and Turns"
    given = (task.question, task.group, task.sample, task.step)
    if (found.question, found.group, found.sample, found.step) != given:
        return "a Trajectory of another task (question, group, sample, step); expected the one it was given"
    ids, sampled, logprobs, versions = (
        len(found.ids),
        sum(found.sampled),
        len(found.logprobs),
        len(found.versions),
    )
    if len(found.sampled) != ids or not sampled == logprobs == versions:
        return (
            f"a Trajectory of {ids} ids and {len(found.sampled)} origins, of which {sampled} are sampled, with "
            f"{logprobs} logprobs and {versions} versions; expected one origin an id, and one logprob and version "
            "a sampled one"
        )
    if not all(map(isfinite, found.logprobs)):
        return "a Trajectory with a logprob that is no number; expected those of the engine"
    return None

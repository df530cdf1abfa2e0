"""An assignment: one attempt given to a worker, and its JSON form; needs only the standard library."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from sleuth.agent.task import Task
from sleuth.gateway.endpoint import Endpoint
from sleuth.records import Question, Score


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task for a worker, with the endpoint of its rollout."""

    id: str
    task: Task
    endpoint: Endpoint

    def to_json(self) -> dict[str, Any]:
        task = {**_fields(self.task), "question": _fields(self.task.question)}
        return {"id": self.id, "task": task, "endpoint": _fields(self.endpoint)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any], gateway: str | None = None) -> "Assignment":
        """Read an assignment; with `gateway`, replace the address of the endpoint by the one the worker uses."""
        given: Mapping[str, Any] = row["task"]["question"]
        question: Any = {name: tuple(each) if isinstance(each, list) else each for name, each in given.items()}
        endpoint = Endpoint(**row["endpoint"])
        if gateway is not None:
            base_url = f"{gateway.rstrip('/')}{urlsplit(endpoint.base_url).path}"
            endpoint = Endpoint(base_url, endpoint.api_key, endpoint.model)
        return cls(row["id"], Task(**{**row["task"], "question": Question(**question)}), endpoint)


def _fields(row: Task | Question | Endpoint) -> dict[str, Any]:
    """Return the fields without copying their values, which `asdict` does."""
    return {each.name: getattr(row, each.name) for each in fields(row)}


def reward_to_json(reward: Score | None) -> dict[str, Any] | None:
    return None if reward is None else asdict(reward)

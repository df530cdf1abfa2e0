"""What a tracker shows: one run, found again under the same id after it was interrupted."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from sleuth.runs.run import Run

FOLDER = "tracking"


class Tracker(Protocol):
    """Shows the metrics of a run elsewhere; whatever it raises ends it, never the run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows the metrics of a step; after a rollback steps come again."""
        ...

    def close(self) -> None:
        """Sends what is left."""
        ...


@dataclass(frozen=True, slots=True)
class Session:
    """A run that is to be shown under a project."""

    run: Run
    project: str

    @property
    def name(self) -> str:
        return self.run.path.name

    def known(self, tracker: str) -> str | None:
        """The id under which a tracker knows this run already."""
        kept = self.run.read_json(f"{FOLDER}/{tracker}.json")
        return None if kept is None else str(kept["id"])

    def keep(self, tracker: str, given: str) -> str:
        """Keeps an id with the run, so that a resumed run goes on under it."""
        self.run.write_json(f"{FOLDER}/{tracker}.json", {"id": given})
        return given

    def id_for(self, tracker: str) -> str:
        """The id of this run where we may choose it: the known one, or a new one that is kept."""
        return self.known(tracker) or self.keep(tracker, uuid4().hex[:12])

    def settings(self) -> dict[str, Any]:
        """Every knob of the run under its dotted name."""
        return dict(_leaves(self.run.manifest().get("config") or {}, ""))


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value

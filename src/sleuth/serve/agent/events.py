"""What happens in an episode, in the order in which it does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sleuth.records import Hit, StopReason, Trajectory


@dataclass(frozen=True, slots=True)
class Thought:
    """The next piece of what the model thinks."""

    text: str


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a step: those of one index belong together."""

    index: int
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    """The episode is over; `cut` where it was not to sample more tokens."""

    trajectory: Trajectory
    seconds: float
    cut: bool

    @property
    def stop(self) -> str:
        """Why: as the trajectory says, or max_tokens."""
        return "max_tokens" if self.cut else self.trajectory.stop.value

    @property
    def failed(self) -> StopReason | None:
        """The reason, where it is not the model's fault that there is no answer."""
        return None if self.cut or self.trajectory.stop.usable else self.trajectory.stop


Event = Thought | Step | End
Tell = Callable[[Event], None]


def source(hit: Hit) -> dict[str, Any]:
    """A passage as it is shown to those who ask."""
    passage, url = hit.passage, hit.passage.extra.get("url")
    shown = {"id": passage.id, "title": passage.title, "text": passage.text, "score": hit.score}
    return {**shown, "url": url} if isinstance(url, str) else shown

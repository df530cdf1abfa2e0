"""A verdict: what a guard saw, where its limit was, and what is done about it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal

Action = Literal["warn", "skip", "rollback", "stop"]

# From the mildest to the gravest: of several verdicts the last of these is carried out.
DONE: dict[Action, str] = {
    "warn": "training goes on",
    "skip": "this step's update is not applied",
    "rollback": "back to the last good checkpoint, with a lower rate",
    "stop": "the run stops",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A limit that was crossed in a step; `sentence` says so with both figures."""

    guard: str
    action: Action
    value: float
    limit: float
    sentence: str

    @property
    def applies(self) -> bool:
        """Whether the update it was asked about is applied nevertheless."""
        return self.action == "warn"

    def line(self, step: int) -> str:
        """What whoever watches the run is told."""
        return f"step {step}: {self.sentence}; {DONE[self.action]}"

    def event(self) -> dict[str, str | float | None]:
        """The row of events.jsonl; a figure that is no number has none in JSON."""
        return {
            "guard": self.guard,
            "action": self.action,
            "value": self.value if isfinite(self.value) else None,
            "limit": self.limit if isfinite(self.limit) else None,
            "sentence": self.sentence,
        }


def gravest(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The one to carry out, the first of equals; None where no guard spoke."""
    return max(verdicts, key=_gravity, default=None)


def settled(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts of a step as they are carried out: each guard once, and one rollback, for others come to the same.

    A rollback less is a warning: the record of a run counts its rollbacks by their events.
    """
    found = {verdict.guard: verdict for verdict in sorted(verdicts, key=_gravity)}
    carried = gravest(found.values())
    return [
        replace(each, action="warn") if each.action == "rollback" and each is not carried else each
        for each in found.values()
    ]


def marks(verdicts: Iterable[Verdict]) -> dict[str, float]:
    """What the metrics of a step say of its verdicts."""
    return {f"guard/{verdict.guard}": 1.0 for verdict in verdicts}


def _gravity(verdict: Verdict) -> int:
    return list(DONE).index(verdict.action)

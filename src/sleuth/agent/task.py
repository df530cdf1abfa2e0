"""A task: one attempt at a question, with its sampling parameters; imports nothing heavy."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sleuth.agent.ledger import Ledger
from sleuth.records import Branch, Question, Segment, StopReason, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Prefix:
    """The beginning of another attempt at the same question: its exact tokens, and the turns that they contain."""

    ids: tuple[int, ...]
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """An episode to run; temperature 0 means greedy decoding, `top_p` 1 and `top_k` 0 disable truncation.

    With a `prefix`, the episode continues another attempt instead of starting with the prompt; `branch` is its place in
    a tree of rollouts.
    """

    question: Question
    group: int = 0
    sample: int = 0
    step: int = 0
    seed: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    branch: Branch | None = None
    prefix: Prefix | None = None

    def turn_seed(self, turn: int, given: int | None = None) -> int:
        """Return the sampling seed of a turn: distinct for each turn of each sample, identical in every process.

        A seed that an agent has `given` only adds to it: with the same seed, all samples of a group would be equal.
        """
        name = f"{self.seed}/{self.step}/{self.group}/{self.question.id}/{self.sample}/{turn}"
        name += "" if given is None else f"/{given}"
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")

    def trajectory(
        self, stop: StopReason, turns: Sequence[Turn] = (), failure: str | None = None, ledger: Ledger | None = None
    ) -> Trajectory:
        """Build the trajectory of the finished episode; without a ledger, it has no tokens."""
        return Trajectory(
            question=self.question,
            group=self.group,
            sample=self.sample,
            step=self.step,
            segments=(self._segment(ledger, turns),) if ledger and ledger.ids else (),
            turns=tuple(turns),
            stop=stop,
            failure=failure,
            branch=self.branch,
        )

    def _segment(self, ledger: Ledger, turns: Sequence[Turn]) -> Segment:
        """The tokens of the episode; those of the turns in the prefix are given, so `calls` counts the others."""
        segment = ledger.segment()
        if self.prefix is None:
            return segment
        first = len(self.prefix.turns)
        return replace(segment, calls=tuple((first + n, turn.tokens) for n, turn in enumerate(turns[first:])))

"""Order of the training questions in each epoch: shuffled, or by the outcome of each question's last group.

The order of an epoch is fixed once, when its first question is about to be drawn, and written to the run folder before
it is used. A resumed run reads it there, so that it asks the same questions.
"""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from sleuth.config.train import TrainConfig
from sleuth.records import Group, Question, Score, Trajectory
from sleuth.reward.answers import abstains
from sleuth.runs.atomic import PRIVATE, atomic_write
from sleuth.runs.json_files import append_row, encode_json, read_json, read_rows
from sleuth.train.metrics import has_spread
from sleuth.train.ranks import Ranks

FOLDER, OUTCOMES = "curriculum", "outcomes.jsonl"  # in the run folder

Outcome = Literal["spread", "failed", "solved"]
PRIORITY: dict[str | None, int] = {"spread": 0, None: 0, "failed": 1, "solved": 2}  # None: no usable group so far


def shuffled_order(count: int, seed: int, epoch: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


def ranked_order(order: Sequence[int], outcomes: Sequence[str | None], recent: Sequence[int]) -> list[int]:
    """Sort the questions by the priority of their outcomes, stably.

    At least `len(recent)` other questions precede any recent one, if there are enough.
    """
    ranked, avoided = sorted(order, key=lambda index: PRIORITY[outcomes[index]]), set(recent)
    first = [index for index in ranked if index not in avoided][: len(recent)]
    taken = set(first)
    return first + [index for index in ranked if index not in taken]


class Curriculum:
    """The orders of the epochs after the first, by the outcomes recorded for the questions.

    A question is not drawn again within the next `2 * train.questions * (1 + train.resample)` positions, or half of all
    questions if these are fewer.
    """

    def __init__(self, run: Path, questions: Sequence[Question], train: TrainConfig) -> None:
        self._folder = run / FOLDER
        self._ids, self._seed = [question.id for question in questions], train.seed
        self._gap = min(len(questions) // 2, 2 * train.questions * (1 + train.resample))
        self._orders: dict[int, list[int]] = {}

    def order(self, epoch: int) -> list[int]:
        """Return the order of an epoch that is prepared, after the first."""
        return self._orders[epoch]

    def prepare(self, first: int, last: int, step: int, ranks: Ranks) -> None:
        """Fix the orders of positions `first` to `last` by the outcomes up to a step; collective."""
        epochs = range(max(1, first // len(self._ids)), last // len(self._ids) + 1)
        if missing := [epoch for epoch in epochs if epoch not in self._orders]:
            mine = [] if ranks.rank else [self._fix(epoch, step) for epoch in missing]
            fixed = ranks.gather(mine, f"the order of the questions in epoch {missing[0] + 1}")[0]
            self._orders = {epoch: order for epoch, order in self._orders.items() if epoch in epochs}
            self._orders |= dict(zip(missing, fixed, strict=True))

    def restore(self, last: int, step: int, ranks: Ranks) -> None:
        """Read all orders that are already fixed, and fix those up to position `last`; collective."""
        mine: list[dict[int, list[int]]] = []
        if ranks.rank == 0:
            newest = max(
                (int(path.stem.removeprefix("epoch-")) for path in self._folder.glob("epoch-*.json")), default=0
            )
            mine = [{epoch: self._fix(epoch, step) for epoch in range(1, max(newest, last // len(self._ids)) + 1)}]
        self._orders = ranks.gather(mine, "the orders of the questions")[0][0]

    def record(self, step: int, groups: Iterable[Group]) -> None:
        """Record the outcomes of the groups of a step, flushed to disk; only rank 0 calls it."""
        outcomes = {group.question.id: outcome_of(group) for group in groups if group.scores}
        self._folder.mkdir(mode=PRIVATE, exist_ok=True)
        append_row(self._folder / OUTCOMES, {"step": step, "outcomes": outcomes})

    def _fix(self, epoch: int, step: int) -> list[int]:
        """Read the order of an epoch, or compute and write it."""
        if epoch == 0:
            return shuffled_order(len(self._ids), self._seed, 0)
        path, name = self._folder / f"epoch-{epoch}.json", "order"
        if not path.exists():
            found = self._outcomes(step)
            shuffled = shuffled_order(len(self._ids), self._seed, epoch)
            recent = self._fix(epoch - 1, step)[len(self._ids) - self._gap :]
            order = ranked_order(shuffled, [found.get(each) for each in self._ids], recent)
            with atomic_write(path) as temporary:
                temporary.write_bytes(encode_json({name: order}))
        fixed: list[int] = read_json(path)[name]
        return fixed

    def _outcomes(self, step: int) -> dict[str, str]:
        """Return the last outcome of each question up to a step; a repeated step overwrites its earlier outcomes."""
        path = self._folder / OUTCOMES
        rows = {row["step"]: row["outcomes"] for row in (read_rows(path) if path.exists() else ())}
        latest: dict[str, str] = {}
        for number in sorted(rows):
            if number <= step:
                latest |= rows[number]
        return latest


def outcome_of(group: Group) -> Outcome:
    """Classify a group: rewards differ, or all samples are right, or not."""
    if has_spread(group):
        return "spread"
    pairs = zip(group.trajectories, group.scores, strict=True)
    return "solved" if all(_is_right(trajectory, score) for trajectory, score in pairs) else "failed"


def _is_right(trajectory: Trajectory, score: Score) -> bool:
    """Whether the answer is an exact match, or an abstention if the question is unanswerable."""
    question = trajectory.question
    if question.answerable is False:
        return abstains(trajectory.answer, question.golden_answers)
    return score.parts["em"] == 1.0

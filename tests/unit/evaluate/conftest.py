"""Evaluations made of finished trajectories."""

from collections.abc import Callable

import pytest

from sleuth.config import RewardConfig
from sleuth.evaluate.suite import Evaluation, asked
from sleuth.records import Answer, Outcome, Question, Search, StopReason, Trajectory, Turn
from sleuth.reward.rubric import Rubric


def _trajectory(question: Question, answer: str | None, searches: int) -> Trajectory:
    """An episode that searched and answered; None is one that the search engine broke off."""
    turns = [Turn("<search>x</search>", Search("x"), Outcome.FOUND, 3)] * searches
    if answer is not None:
        turns.append(Turn(f"<answer>{answer}</answer>", Answer(answer), Outcome.ANSWERED, 3))
    stop = StopReason.SEARCH_UNAVAILABLE if answer is None else StopReason.ANSWERED
    return Trajectory(question, 0, 0, 0, (1,), (False,), (), (), tuple(turns), stop)


@pytest.fixture
def evaluation() -> Callable[..., Evaluation]:
    """Questions with the right answer "oslo", each given as (type, hops, answer, searches)."""
    rubric = Rubric(RewardConfig())

    def made(*rows: tuple[str | None, int | None, str | None, int]) -> Evaluation:
        questions = [
            Question(f"q{n}", "Where?", ("oslo",), "world", type=row[0], hops=row[1]) for n, row in enumerate(rows)
        ]
        played = (_trajectory(question, row[2], row[3]) for question, row in zip(questions, rows, strict=True))
        return Evaluation(tuple(asked(trajectory, rubric) for trajectory in played))

    return made

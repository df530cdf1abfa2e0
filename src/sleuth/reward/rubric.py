"""The reward of a trajectory with the parts it was made of."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import SupportsFloat

from sleuth.config.hooks import IMPORT, Contract, call, import_function, resolve
from sleuth.config.reward import RewardConfig
from sleuth.errors import FunctionFailed
from sleuth.records import Question, Score, StopReason, Trajectory, Turn
from sleuth.reward.answers import ANSWERS, cover_em, exact_match, f1
from sleuth.reward.shape import answer_tags, valid

Judge = Callable[[Question, Trajectory], float | Score]

# Search-R1 v0.3: the reward of a wrong and of a right answer, by the validity of the format.
TIERS = {True: (0.2, 1.0), False: (0.1, 0.8)}
MANY_ANSWERS = 10
CONTRACT = Contract(("question", "trajectory"), "a number or a Score")


class Rubric:
    """Scores trajectories as the reward settings say; a pure function of question and trajectory."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._judge = _judge(config.answer)

    def scored(self, trajectory: Trajectory) -> tuple[Trajectory, Score | None]:
        """The trajectory with its score: None for an unusable one, which it becomes where the user's reward fails."""
        if not trajectory.stop.usable:
            return trajectory, None
        try:
            return trajectory, self.score(trajectory.question, trajectory)
        except FunctionFailed as failure:
            return replace(trajectory, stop=StopReason.FUNCTION_FAILED, failure=str(failure)), None

    def score(self, question: Question, trajectory: Trajectory) -> Score:
        """The total to train on, and every part whether or not it counts towards the total."""
        if not trajectory.stop.usable:
            raise ValueError(f"a trajectory that ended with {trajectory.stop} is outside every mean; drop it first")
        parts = measure(question, trajectory)
        judged = self._judged(question, trajectory)
        if taken := parts.keys() & judged.parts.keys():
            raise FunctionFailed(
                f"{self._config.answer!r} reports {min(taken)!r}, a part of the rubric's own; rename it"
            )
        total = self._tiered(judged.total, trajectory, parts) if self._config.format else judged.total
        if self._config.many_answers and answer_tags(trajectory) > MANY_ANSWERS:
            total = min(total, total / 4)  # a negative reward of the user's own must not become milder
        return Score(total, parts | judged.parts)

    def _judged(self, question: Question, trajectory: Trajectory) -> Score:
        hook = self._config.answer
        verdict = call(hook, self._judge, question, trajectory)
        if not isinstance(verdict, Score):
            return Score(_number(hook, "", verdict), {})
        if not isinstance(verdict.parts, dict) or not all(isinstance(name, str) for name in verdict.parts):
            raise FunctionFailed(
                f"{hook!r} gave a Score with parts {_short(verdict.parts)}; expected a dict of numbers by name"
            )
        parts = {name: _number(hook, f" for the part {name!r}", value) for name, value in verdict.parts.items()}
        return Score(_number(hook, " for the total", verdict.total), parts)

    def _tiered(self, value: float, trajectory: Trajectory, parts: dict[str, float]) -> float:
        """The tiers, with a graded answer (F1) in proportion between wrong and right."""
        if not 0.0 <= value <= 1.0:
            raise FunctionFailed(
                f"{self._config.answer!r} gave {value}; expected 0 (wrong) to 1 (right), or set reward.format = false"
            )
        well_formed = parts["format"] == 1.0
        wrong, right = TIERS[well_formed]
        if well_formed:
            wrong += self._config.retrieval * parts["retrieval_hit"]
        if trajectory.answer is None:
            wrong = 0.0  # the lowest tier pays for answering at all
        return (1.0 - value) * wrong + value * right


def measure(question: Question, trajectory: Trajectory) -> dict[str, float]:
    """The parts every score reports."""
    answer, golds = trajectory.answer, question.golden_answers
    return {
        "em": exact_match(answer, golds),
        "f1": f1(answer, golds),
        "cover_em": cover_em(answer, golds),
        "format": float(valid(trajectory)),
        "retrieval_hit": float(any(_seen(turn, golds) for turn in trajectory.turns)),
        "searches": float(trajectory.searches),
    }


def _seen(turn: Turn, golds: Sequence[str]) -> bool:
    """Whether a gold answer stands in a passage, in the part of it that the model was shown."""
    texts = [hit.passage.contents for hit in turn.hits]
    if turn.shown is None:
        return any(cover_em(text, golds) for text in texts)
    # In a passage as well: the frame around them has words of its own.
    left = [gold for gold in golds if cover_em(turn.shown, (gold,))]
    return any(cover_em(text, left) for text in texts)


def _judge(answer: str) -> Judge:
    if answer.startswith(IMPORT):
        return import_function(answer, CONTRACT)
    metric = resolve("reward.answer", answer, ANSWERS, CONTRACT)
    return lambda question, trajectory: metric(trajectory.answer, question.golden_answers)


def _number(hook: str, of: str, value: object) -> float:
    """A finite number that a user's function gave; text is none, and neither is an array."""
    expected = "a number" if of else CONTRACT.returns
    if not isinstance(value, SupportsFloat) or getattr(value, "ndim", 0) > 0:
        raise FunctionFailed(f"{hook!r} gave {_short(value)}{of}; expected {expected}, return one")
    try:
        number = float(value)
    except (ValueError, OverflowError) as error:
        raise FunctionFailed(f"{hook!r} gave {_short(value)}{of} ({error}); expected {expected}") from error
    if not math.isfinite(number):
        raise FunctionFailed(f"{hook!r} gave {number}{of}; expected a finite number, return one")
    return number


def _short(value: object) -> str:
    """A value for a sentence: on one line, not too long, with its type."""
    text = " ".join(repr(value).split())
    return f"{text[:60]}{'...' if len(text) > 60 else ''} ({type(value).__name__})"

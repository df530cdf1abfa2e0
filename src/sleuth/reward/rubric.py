"""The reward of a trajectory with the parts it was made of."""

import math
from collections.abc import Callable
from typing import SupportsFloat

from sleuth.config.reward import RewardConfig
from sleuth.errors import ConfigError
from sleuth.hooks import IMPORT, chosen, imported
from sleuth.records import Question, Score, Trajectory
from sleuth.reward.answers import ANSWERS, cover_em, exact_match, f1
from sleuth.reward.shape import answer_tags, valid

Judge = Callable[[Question, Trajectory], float | Score]

# Search-R1 v0.3: the reward of a wrong and of a right answer, by the validity of the format.
TIERS = {True: (0.2, 1.0), False: (0.1, 0.8)}
MANY_ANSWERS = 10


class Rubric:
    """Scores trajectories as the reward settings say; a pure function of question and trajectory."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._judge = _judge(config.answer)

    def score(self, question: Question, trajectory: Trajectory) -> Score:
        """The total to train on, and every part whether or not it counts towards the total."""
        if not trajectory.stop.usable:
            raise ValueError(f"a trajectory that ended with {trajectory.stop} is outside every mean; drop it first")
        parts = measure(question, trajectory)
        judged = self._judged(question, trajectory)
        if taken := parts.keys() & judged.parts.keys():
            raise ConfigError(f"{self._config.answer!r} reports {min(taken)!r}, a part of the rubric's own; rename it")
        total = self._tiered(judged.total, trajectory, parts) if self._config.format else judged.total
        if self._config.many_answers and answer_tags(trajectory) > MANY_ANSWERS:
            total = min(total, total / 4)  # a negative reward of the user's own must not become milder
        return Score(total, parts | judged.parts)

    def _judged(self, question: Question, trajectory: Trajectory) -> Score:
        verdict = self._judge(question, trajectory)
        score = verdict if isinstance(verdict, Score) else Score(_number(self._config.answer, verdict), {})
        if not math.isfinite(score.total):
            raise ConfigError(f"{self._config.answer!r} gave {score.total}; expected a finite number, return one")
        return score

    def _tiered(self, value: float, trajectory: Trajectory, parts: dict[str, float]) -> float:
        """The tiers, with a graded answer (F1) in proportion between wrong and right."""
        if not 0.0 <= value <= 1.0:
            raise ConfigError(
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
    retrieved = (hit.passage.contents for turn in trajectory.turns for hit in turn.hits)
    return {
        "em": exact_match(answer, golds),
        "f1": f1(answer, golds),
        "cover_em": cover_em(answer, golds),
        "format": float(valid(trajectory)),
        "retrieval_hit": float(any(cover_em(text, golds) for text in retrieved)),
        "searches": float(trajectory.searches),
    }


def _judge(answer: str) -> Judge:
    if answer.startswith(IMPORT):
        return imported(answer)
    metric = chosen("reward.answer", answer, ANSWERS)
    return lambda question, trajectory: metric(trajectory.answer, question.golden_answers)


def _number(hook: str, verdict: object) -> float:
    """The verdict of a user's function as a number; functions from outside are not typed."""
    if not isinstance(verdict, SupportsFloat):
        raise ConfigError(f"{hook!r} gave {verdict!r}; expected a number or a Score, return one")
    return float(verdict)

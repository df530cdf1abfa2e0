"""Difficulty of questions: how often an agent fails at them."""

from collections.abc import Callable, Sequence

from sleuth.agent.episode import Runner, run_batch
from sleuth.agent.task import Task
from sleuth.config.reward import RewardConfig
from sleuth.corpus.questions import QuestionRow
from sleuth.errors import InputError
from sleuth.records import Trajectory
from sleuth.reward.rubric import Rubric
from sleuth.synthesis.candidate import with_difficulty

# Right is an exact match, or "I don't know" if the question is unanswerable.
RIGHT = RewardConfig(abstain=0.0)


async def measure_difficulty(
    agent: Runner,
    rows: Sequence[QuestionRow],
    samples: int,
    concurrency: int,
    seed: int = 0,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[QuestionRow]:
    """Ask every question several times and record the share of wrong answers; unusable episodes do not count.

    Raises InputError if no episode of a question is usable.
    """
    tasks = [
        Task(row.question, group, number, seed=seed) for group, row in enumerate(rows) for number in range(samples)
    ]
    scored = await Rubric(RIGHT).score_all(await run_batch(agent, tasks, concurrency, on_episode))
    measured = []
    for group, row in enumerate(rows):
        attempts = scored[group * samples : (group + 1) * samples]
        right = [score.total >= 1 for _, score in attempts if score is not None]
        if not right:
            raise InputError(f"all episodes of question {row.question.id} failed: {attempts[0][0].failure}")
        measured.append(with_difficulty(row, sum(right) / len(right)))
    return measured

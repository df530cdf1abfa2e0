"""Evaluation runner: ask each question once, score the answers, and stop early if the search or engine is down."""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sleuth.agent.conversation import OnText
from sleuth.agent.episode import Runner, run_batch
from sleuth.agent.task import Task
from sleuth.config.reward import RewardConfig
from sleuth.errors import InputError
from sleuth.evaluate.folder import TIME, EvaluationFolder, row_with_passages
from sleuth.evaluate.results import Evaluation, QuestionResult, ScoredTrajectory
from sleuth.records import Outcome, Question, StopReason, Trajectory
from sleuth.reward.rubric import Rubric, score_by_em

MAX_FAILURES = 50
SAVE_INTERVAL = 1.0  # seconds between two writes of the elapsed time

OnResult = Callable[[ScoredTrajectory], None]


@dataclass(slots=True)
class CircuitBreaker:
    """Stops an evaluation after repeated failures.

    Trips after MAX_FAILURES engine or user-function failures in a row, or if the first MAX_FAILURES searches all fail.
    """

    search_succeeded: bool = False
    search_failures: int = 0
    consecutive_failures: int = 0

    def check(self, trajectory: Trajectory) -> None:
        """Count a finished episode; raises InputError if the breaker trips."""
        failed = trajectory.stop in (StopReason.ENGINE_FAILED, StopReason.FUNCTION_FAILED)
        self.consecutive_failures = self.consecutive_failures + 1 if failed else 0
        self.search_succeeded |= any(turn.outcome is Outcome.FOUND or turn.hits for turn in trajectory.turns)
        self.search_failures += trajectory.stop is StopReason.SEARCH_UNAVAILABLE
        if self.consecutive_failures >= MAX_FAILURES:
            problem = f"{self.consecutive_failures} questions in a row failed"
        elif not self.search_succeeded and self.search_failures >= MAX_FAILURES:
            problem = f"the first {self.search_failures} searches all failed"
        else:
            return
        raise InputError(
            f"{problem} ({trajectory.failure}); fix the cause and repeat the command, which keeps all answers so far"
        )


@dataclass(frozen=True, slots=True)
class _ScoringAgent:
    """Agent that times and scores each episode; results are stored by question position."""

    agent: Runner
    rubric: Rubric
    scored: dict[int, ScoredTrajectory] = field(default_factory=dict)

    async def run(self, task: Task, order: int = 0, on_text: OnText | None = None) -> Trajectory:
        started = time.monotonic()
        trajectory = await self.agent.run(task, order, on_text)
        seconds = time.monotonic() - started
        self.scored[task.group] = ScoredTrajectory(*await self.rubric.score_one(trajectory), seconds)
        return trajectory


async def evaluate(
    agent: Runner,
    questions: Sequence[Question],
    rubric: Rubric,
    *,
    positions: Collection[int] | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    step: int = 0,
    concurrent: int = 128,
    on_result: OnResult | None = None,
    breaker: CircuitBreaker | None = None,
    keep_episodes: bool = True,
) -> Evaluation:
    """Ask each question once, or only those at `positions`, and score the answers.

    `on_result` is called for each episode as it finishes. Failures are counted, never scored.
    """
    scoring = _ScoringAgent(agent, rubric)
    results: dict[int, QuestionResult] = {}

    def finish(trajectory: Trajectory) -> None:
        episode = scoring.scored.pop(trajectory.group)
        results[trajectory.group] = QuestionResult.of(episode, keep_episode=keep_episodes)
        if on_result is not None:
            on_result(episode)
        if breaker is not None:
            breaker.check(episode.trajectory)

    tasks = [
        Task(question, group=position, step=step, seed=seed, temperature=temperature)
        for position, question in enumerate(questions)
        if positions is None or position in positions
    ]
    await run_batch(scoring, tasks, concurrent, finish)
    return Evaluation(tuple(results[task.group] for task in tasks))


class EvaluationClock:
    """Elapsed time of an evaluation over all sessions, saved every SAVE_INTERVAL seconds."""

    def __init__(self, folder: EvaluationFolder) -> None:
        self.folder, self.earlier = folder, folder.seconds() or 0.0
        self.started, self.saved = time.monotonic(), 0.0

    def save(self, *, force: bool = False) -> float:
        """Write the total if SAVE_INTERVAL has passed, or always with `force`; return the seconds of this session."""
        elapsed = time.monotonic() - self.started
        if force or elapsed - self.saved >= SAVE_INTERVAL:
            self.saved = elapsed
            self.folder.write(TIME, json.dumps({"seconds": self.earlier + elapsed}) + "\n")
        return elapsed


@dataclass(frozen=True, slots=True)
class AnsweredQuestions:
    """Results of the questions answered in this session, by position, and its duration."""

    seconds: float
    results: Mapping[int, QuestionResult]


async def evaluate_folder(
    agent: Runner,
    folder: EvaluationFolder,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    concurrent: int = 128,
    on_result: OnResult | None = None,
) -> AnsweredQuestions:
    """Ask all questions of a folder without a usable trajectory."""
    clock, locations, questions = EvaluationClock(folder), folder.locations(), folder.questions()
    missing = [each for each in range(len(questions)) if each not in locations or not locations[each].usable]
    results: dict[int, QuestionResult] = {}
    with folder.appending() as append:

        def save(episode: ScoredTrajectory) -> None:
            # As `score_folder` scores it: without the reward of an outside agent.
            scored = replace(episode, score=score_by_em(episode.trajectory))
            results[episode.trajectory.group] = QuestionResult.of(scored, keep_episode=False)
            append(row_with_passages(episode.trajectory, episode.score, episode.seconds))
            clock.save()
            if on_result is not None:
                on_result(episode)

        try:
            await evaluate(
                agent,
                questions,
                Rubric(RewardConfig()),
                positions=set(missing),
                temperature=temperature,
                seed=seed,
                concurrent=concurrent,
                on_result=save,
                breaker=CircuitBreaker(),
                keep_episodes=False,
            )
        finally:
            elapsed = clock.save(force=True)
    return AnsweredQuestions(elapsed, results)

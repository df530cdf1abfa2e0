"""The monitor of a step: timing, metrics and guards around the training loop."""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import isfinite

from sleuth.algorithms.kl import adapt_coefficient
from sleuth.train.checkpoint import Progress
from sleuth.train.guards import Guards, NotFinite, Verdict, failure_examples, most_severe, resolve
from sleuth.train.metrics import Metrics, memory_metrics, speed_metrics, staleness_metrics
from sleuth.train.parts import Parts
from sleuth.train.rollout import RolloutBatch


@dataclass(frozen=True, slots=True)
class StepResult:
    """A finished step: its metrics, the verdicts of the guards, and the progress after it."""

    metrics: Metrics
    verdicts: list[Verdict]
    progress: Progress

    @property
    def verdict(self) -> Verdict | None:
        """The verdict to carry out."""
        return most_severe(self.verdicts)


class StepMonitor:
    """Measures one step and asks the guards about its rollouts, its updates and the result."""

    def __init__(self, parts: Parts, guards: Guards, progress: Progress) -> None:
        self._parts, self._guards, self._progress = parts, guards, progress
        self._started = time.monotonic()
        self._metrics: Metrics = {}
        self._verdicts: list[Verdict] = []
        self.allow_update = guards.update_gate(self._verdicts)

    def time(self, name: str) -> AbstractContextManager[None]:
        return self._parts.learner.timer.time(name)

    def check_rollouts(self, batch: RolloutBatch) -> bool:
        """Check the rollouts; whether to learn from them."""
        self._metrics |= batch.metrics()
        self._verdicts += self._guards.check(self._metrics, failure_examples(batch.trajectories))
        worst = most_severe(self._verdicts)
        return bool(batch.kept) and (worst is None or worst.applies_update)

    def check_learning(self, metrics: Metrics, batch: RolloutBatch) -> None:
        """Check the metrics of the updates, and that the new weights are finite."""
        checked = metrics
        if self._parts.config.train.mode == "ahead":
            # Engine and trainer are one version apart, so their difference says nothing about the engine.
            metrics.pop("parity/k3", None)
            checked = {name: value for name, value in metrics.items() if name != "correction/k3"}
        self._metrics |= metrics
        self._verdicts += self._guards.check(checked)
        # Checked here, because all episodes of the next rollout would fail before a guard is asked.
        if broken := self._parts.learner.find_non_finite(batch.kept):
            self._verdicts.append(self._guards.non_finite(f"{broken} are not finite after the update"))

    def finish(self, batch: RolloutBatch, kl_coefficient: float) -> StepResult:
        """The result of the step."""
        parts, progress, episodes = self._parts, self._progress, len(batch.trajectories)
        times = {**parts.learner.timer.collect(), "time/step": time.monotonic() - self._started}
        # Rewards are computed during generation and recorded as time/reward.
        times["time/generate"] = max(0.0, times["time/generate"] - batch.cost["time/reward"])
        metrics = self._metrics | {f"guard/{verdict.guard}": 1.0 for verdict in self._verdicts} | times
        metrics |= speed_metrics(parts.learner.policy, parts.ranks, episodes, metrics)
        metrics |= {"time/episodes": batch.seconds, **batch.cost, **memory_metrics()}
        metrics |= staleness_metrics(batch.trajectories, progress.step)
        settings, measured = parts.config.algorithm.kl, metrics.get("policy/kl")
        if settings.target is not None and measured is not None and isfinite(measured):
            kl_coefficient = adapt_coefficient(kl_coefficient, measured, settings.target, settings.horizon, episodes)
        reached = replace(
            progress,
            step=progress.step + 1,
            tokens=progress.tokens + int(metrics["episode/tokens_all"]),
            questions_drawn=batch.questions_drawn,
            kl=kl_coefficient,
            score=None,
        )
        return StepResult(metrics, resolve(self._verdicts), reached)

    def fail(self, failure: NotFinite) -> StepResult:
        """The result of a step whose rollouts met weights that are not finite: nothing is learned or recorded."""
        return StepResult(
            {}, [self._guards.non_finite(failure.sentence)], replace(self._progress, step=self._progress.step + 1)
        )

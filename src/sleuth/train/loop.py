"""The training loop: collect scored rollouts, learn from them, publish the weights, record the step, save."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite

from sleuth.algorithms.kl import adapt_coefficient
from sleuth.engines.base import Engine
from sleuth.evaluate.results import Evaluation
from sleuth.runs.interruption import INTERRUPTION
from sleuth.runs.run import step_of
from sleuth.train import guards, parity, recovery
from sleuth.train.checkpoint import Progress
from sleuth.train.guards import Guards, NotFinite, Verdict, failure_examples, most_severe
from sleuth.train.held_out import HeldOutResults, evaluate_held_out, evaluate_twice
from sleuth.train.metrics import Metrics, memory_metrics, speed_metrics, staleness_metrics
from sleuth.train.observer import RunObserver
from sleuth.train.parts import Parts
from sleuth.train.rollout import RolloutBatch, RolloutSchedule
from sleuth.train.step import StepRates
from sleuth.train.streaming import schedule_rollouts


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a finished run, with the evaluations before and after training if they are enabled."""

    before: HeldOutResults | None
    after: HeldOutResults | None
    progress: Progress


def train(parts: Parts, observer: RunObserver, started: float) -> Outcome:
    """Train to the last step, starting from the newest checkpoint if there is one."""
    rollouts = schedule_rollouts(parts.sampler, parts.publisher, parts.run.path)
    before = after = None
    with INTERRUPTION.defer(), parts.open(), rollouts, _closing_engine(parts.engine, rollouts):
        newest = recovery.newest_checkpoint(parts)
        recovery.prepare_records(parts, newest, observer)
        checked = parity.check_engine(parts, rollouts, observer, 0)
        if parts.config.evaluate.before:
            before = evaluate_twice(parts, rollouts, observer, 0, "evaluating before training")
        progress = recovery.restore(parts, newest)
        if newest is None:  # step 0 is the policy before training
            parts.record_metrics(0, {**checked.metrics(), **(before.greedy.metrics("evaluate") if before else {})})
            progress = _score(parts, progress, before.greedy) if before else progress
            parts.save(progress)
        else:
            checked = parity.check_engine(parts, rollouts, observer, progress.step)
        parts = parity.with_correction(parts, checked, observer)
        recompute = parity.recomputes_old_logprobs(parts, checked, observer)
        loop = TrainingLoop(parts, rollouts, observer, recompute, started - progress.seconds)
        rollouts.restore(progress)
        progress = loop.run(progress)
        if parts.config.evaluate.after:
            after = evaluate_twice(parts, rollouts, observer, progress.step, "evaluating after training")
    if after is not None and parts.config.train.keep_best and parts.is_first_rank:
        parts.run.record_score(progress.step, after.greedy.right.value)
    return Outcome(before, after, replace(progress, seconds=time.monotonic() - loop.started))


@dataclass(frozen=True, slots=True)
class StepResult:
    """A finished step: its metrics, the verdicts of the guards, and the progress after it."""

    metrics: Metrics
    verdicts: list[Verdict]
    progress: Progress


@dataclass(slots=True)
class TrainingLoop:
    """Runs the steps of training; `started` is the `time.monotonic` start of an equivalent uninterrupted run."""

    parts: Parts
    rollouts: RolloutSchedule
    observer: RunObserver
    recompute: bool
    started: float
    guards: Guards = field(init=False)

    def run(self, progress: Progress) -> Progress:
        """Train until the last step, carrying out the guards' verdicts."""
        self._begin_stage("training", progress)
        while progress.step < self.parts.config.train.steps:
            with recovery.save_on_interrupt(self.parts, progress):
                result = self.step(progress)
            progress = replace(result.progress, seconds=time.monotonic() - self.started)
            verdict = most_severe(result.verdicts)
            if verdict is not None and verdict.action == "rollback":
                progress = recovery.roll_back(self.parts, self.rollouts, progress, result.verdicts, self.observer)
                self._begin_stage(f"training again from step {progress.step}", progress)
            else:
                progress = self.record(result, progress)
        return progress

    def step(self, progress: Progress) -> StepResult:
        """Run one training step."""
        parts, config, step = self.parts, self.parts.config, progress.step
        time_part = parts.learner.timer.time
        monitor = StepMonitor(parts, self.guards, progress)
        rates = StepRates.at(step, config.train, config.algorithm.critic, progress.kl, self.guards.rate_scale)
        try:
            with time_part("generate"):
                batch = self.rollouts.next_batch(step, progress.questions_drawn, last=step + 1 == config.train.steps)
        except NotFinite as failure:  # nothing is learned or recorded
            return StepResult({}, [self.guards.non_finite(failure.sentence)], replace(progress, step=step + 1))
        if monitor.check_rollouts(batch):
            metrics = parts.learner.learn(batch.kept, rates, monitor.allow_update, self.recompute)
            monitor.check_learning(metrics, batch)
        with time_part("publish"):
            if config.train.mode != "ahead":  # then the schedule publishes
                parts.publisher.publish(step + 1, keep_cache=config.engine.stale_cache == "keep")
                self.rollouts.advance(step + 1)
        with time_part("write"):
            parts.record_rollouts(step + 1, batch)
        return monitor.finish(batch, rates.kl)

    def record(self, result: StepResult, progress: Progress) -> Progress:
        """Record the step, then evaluate and save if due; metrics reach the disk before the checkpoint."""
        parts, step, metrics, settings = self.parts, progress.step, result.metrics, self.parts.config.train
        parts.record_verdicts(step, result.verdicts, self.observer)
        verdict = most_severe(result.verdicts)
        if verdict is not None and verdict.action == "stop":
            guards.stop(verdict)
        parts.saver.check()  # a failed checkpoint ends the run at once, before more steps are lost
        best = progress.best
        every, is_last = parts.config.evaluate.every, step == settings.steps
        # With train.keep_best, also evaluate at the end, unless the final evaluation does so anyway.
        due = every and (step % every == 0 or (is_last and settings.keep_best))
        if due and not (is_last and parts.config.evaluate.after):
            self.rollouts.wait_idle()
            parts.publisher.publish(step)
            evaluation = self.rollouts.run(evaluate_held_out(parts, 0.0, step))
            parts.publisher.publish(step)
            metrics = {**metrics, **evaluation.metrics("evaluate")}
            progress = _score(parts, progress, evaluation)
        parts.record_metrics(step, metrics)
        self.observer.step(step, metrics)
        self.observer.advance()
        if is_last or step % settings.save_every == 0 or (settings.keep_best and progress.best != best):
            self.rollouts.prune(step_of(latest) if (latest := parts.run.latest()) is not None else 0)
            parts.save(progress)
        self.guards.record(result.metrics)
        return progress

    def _begin_stage(self, stage: str, progress: Progress) -> None:
        """Start the progress bar and rebuild the guards from the run's records."""
        parts = self.parts
        self.observer.begin(stage, parts.config.train.steps)
        self.observer.advance(progress.step)
        rollbacks = sum(event["action"] == "rollback" for event in parts.run.events())
        self.guards = Guards(parts.config.guards, parts.run.metrics(), rollbacks)


class StepMonitor:
    """Times one step, and checks its rollouts and updates with the guards."""

    def __init__(self, parts: Parts, step_guards: Guards, progress: Progress) -> None:
        self._parts, self._guards, self._progress = parts, step_guards, progress
        self._started = time.monotonic()
        self._metrics: Metrics = {}
        self._verdicts: list[Verdict] = []
        self.allow_update = step_guards.update_gate(self._verdicts)

    def check_rollouts(self, batch: RolloutBatch) -> bool:
        """Check the rollouts; return whether to learn from them."""
        self._metrics |= batch.metrics()
        self._verdicts += self._guards.check(self._metrics, failure_examples(batch.trajectories))
        learned_from = [trajectory for group in batch.kept for trajectory in group.trajectories]
        if roles := self._parts.config.train.roles if learned_from else ():
            self._verdicts += self._guards.check_roles(learned_from, roles)
        worst = most_severe(self._verdicts)
        return bool(batch.kept) and (worst is None or worst.applies_update)

    def check_learning(self, metrics: Metrics, batch: RolloutBatch) -> None:
        """Check the metrics of the updates, and check that the new weights are finite."""
        checked = metrics
        if self._parts.config.train.max_staleness:
            # Engine and trainer are versions apart, so their difference does not measure engine accuracy.
            metrics.pop("parity/k3", None)
            checked = {name: value for name, value in metrics.items() if name != "correction/k3"}
        self._metrics |= metrics
        self._verdicts += self._guards.check(checked)
        # Checked here, because otherwise every episode of the next rollout would fail before a guard runs.
        if broken := self._parts.learner.find_non_finite(batch.kept):
            self._verdicts.append(self._guards.non_finite(f"{broken} are not finite after the update"))

    def finish(self, batch: RolloutBatch, kl_coefficient: float) -> StepResult:
        """Compute the remaining metrics and return the result of the step."""
        parts, progress, episodes = self._parts, self._progress, len(batch.trajectories)
        times = {**parts.learner.timer.collect(), "time/step": time.monotonic() - self._started}
        times["time/waiting_for_rollouts"] = times["time/generate"]
        if not parts.config.train.is_streaming:
            # Rewards are computed while the trainer waits, and recorded as time/reward.
            times["time/generate"] = max(0.0, times["time/generate"] - batch.cost["time/reward"])
        metrics = self._metrics | {f"guard/{verdict.guard}": 1.0 for verdict in self._verdicts} | times
        metrics |= speed_metrics(parts.learner.policy, parts.ranks, episodes, metrics)
        metrics |= {"time/episodes": batch.seconds, **batch.cost, **memory_metrics()}
        metrics |= {
            **staleness_metrics(batch.trajectories, progress.step),
            **parts.rollout_metrics(progress.step + 1),
        }
        settings, measured = parts.config.algorithm.kl, metrics.get("policy/kl")
        if settings.target is not None and measured is not None and isfinite(measured):
            kl_coefficient = adapt_coefficient(kl_coefficient, measured, settings.target, settings.horizon, episodes)
        reached = replace(
            progress,
            step=progress.step + 1,
            tokens=progress.tokens + int(metrics["episode/tokens_all"]),
            questions_drawn=batch.questions_drawn,
            untrained=batch.untrained,
            kl=kl_coefficient,
            score=None,
        )
        return StepResult(metrics, guards.resolve(self._verdicts), reached)


@contextmanager
def _closing_engine(engine: Engine, rollouts: RolloutSchedule) -> Iterator[None]:
    """Close the engine in its event loop on exit; if the run fails, cancel rollouts first."""
    try:
        yield
    except BaseException:
        rollouts.cancel()
        raise
    finally:
        rollouts.run(engine.close())


def _score(parts: Parts, progress: Progress, evaluation: Evaluation) -> Progress:
    """Add the held-out score of the step, and the best so far, to the progress."""
    score = evaluation.right.value
    best = score if progress.best is None else max(score, progress.best)
    return replace(progress, best=best, score=score if parts.config.train.keep_best else None)

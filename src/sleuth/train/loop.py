"""The training loop: collect scored rollouts, learn from them, publish the weights, record the step, save."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from sleuth.engines.base import Engine
from sleuth.evaluate.results import Evaluation
from sleuth.runs.interruption import INTERRUPTION
from sleuth.train import guards, parity, recovery
from sleuth.train.checkpoint import Progress
from sleuth.train.guards import Guards, NotFinite
from sleuth.train.held_out import HeldOutResults, evaluate_held_out, evaluate_twice
from sleuth.train.monitor import StepMonitor, StepResult
from sleuth.train.observer import RunObserver
from sleuth.train.parts import Parts
from sleuth.train.rollout_schedule import RolloutSchedule, schedule_rollouts
from sleuth.train.step import StepRates


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run, with its evaluations before and after if the settings ask for them."""

    before: HeldOutResults | None
    after: HeldOutResults | None
    progress: Progress


def train(parts: Parts, observer: RunObserver, started: float) -> Outcome:
    """Train from the newest checkpoint, or from the start."""
    rollouts = schedule_rollouts(parts.config.train.mode, parts.sampler.collect, parts.publisher)
    with INTERRUPTION.defer(), parts.open(), rollouts, _closing_engine(parts.engine, rollouts):
        newest = recovery.newest_checkpoint(parts)
        recovery.prepare_records(parts, newest, observer)
        checked = parity.check_engine(parts, rollouts, observer, 0)
        before = None
        if parts.config.evaluate.before:
            before = evaluate_twice(parts, rollouts, observer, 0, "evaluating before training")
        progress = recovery.restore(parts, newest)
        if newest is None:
            progress = _record_start(parts, progress, checked, before)
        else:
            checked = parity.check_engine(parts, rollouts, observer, progress.step)
        parts = parity.with_correction(parts, checked, observer)
        recompute = parity.recomputes_old_logprobs(parts, checked, observer)
        loop = TrainingLoop(parts, rollouts, observer, recompute, started - progress.seconds)
        progress = loop.run(progress)
        after = None
        if parts.config.evaluate.after:
            after = evaluate_twice(parts, rollouts, observer, progress.step, "evaluating after training")
    if after is not None and parts.config.train.keep_best and parts.is_first_rank:
        parts.run.record_score(progress.step, after.greedy.em.value)
    return Outcome(before, after, replace(progress, seconds=time.monotonic() - loop.epoch))


@dataclass(slots=True)
class TrainingLoop:
    """The steps of a run; `epoch` is the monotonic time at which an uninterrupted run would have started."""

    parts: Parts
    rollouts: RolloutSchedule
    observer: RunObserver
    recompute: bool
    epoch: float
    guards: Guards = field(init=False)

    def run(self, progress: Progress) -> Progress:
        """Train until the last step, and carry out what the guards decide."""
        self._begin_stage("training", progress)
        while progress.step < self.parts.config.train.steps:
            with recovery.save_on_interrupt(self.parts, progress):
                result = self.step(progress)
            progress = replace(result.progress, seconds=time.monotonic() - self.epoch)
            if result.verdict is not None and result.verdict.action == "rollback":
                progress = recovery.roll_back(self.parts, self.rollouts, progress, result.verdicts, self.observer)
                self._begin_stage(f"training again from step {progress.step}", progress)
            else:
                progress = self.record(result, progress)
        return progress

    def step(self, progress: Progress) -> StepResult:
        """One step of the algorithm."""
        parts, config, step = self.parts, self.parts.config, progress.step
        monitor = StepMonitor(parts, self.guards, progress)
        rates = StepRates.at(step, config.train, config.algorithm.critic, progress.kl, self.guards.rate_scale)
        try:
            with monitor.time("generate"):
                batch = self.rollouts.next_batch(step, progress.questions_drawn, last=step + 1 == config.train.steps)
        except NotFinite as failure:
            return monitor.fail(failure)
        if monitor.check_rollouts(batch):
            metrics = parts.learner.learn(batch.kept, rates, monitor.allow_update, self.recompute)
            monitor.check_learning(metrics, batch)
        with monitor.time("publish"):
            if config.train.mode == "sync":  # otherwise the schedule publishes
                parts.publisher.publish(step + 1, keep_cache=config.engine.stale_cache == "keep")
        with monitor.time("write"):
            parts.record_rollouts(step + 1, batch)
        return monitor.finish(batch, rates.kl)

    def record(self, result: StepResult, progress: Progress) -> Progress:
        """Record the step, evaluate and save if due; metrics are on disk before the checkpoint that includes them."""
        parts, step, metrics = self.parts, progress.step, result.metrics
        parts.record_verdicts(step, result.verdicts, self.observer)
        if result.verdict is not None and result.verdict.action == "stop":
            guards.stop(result.verdict)
        parts.saver.check()  # a failed checkpoint ends the run at once, before more steps are lost
        best = progress.best
        if self._evaluation_due(step):
            evaluation = self._evaluate(step)
            metrics = {**metrics, **evaluation.metrics("evaluate")}
            progress = _score(parts, progress, evaluation)
        parts.record_metrics(step, metrics)
        self.observer.step(step, metrics)
        self.observer.advance()
        settings = parts.config.train
        improved = settings.keep_best and progress.best != best
        if step == settings.steps or step % settings.save_every == 0 or improved:
            parts.save(progress)
        self.guards.record(result.metrics)
        return progress

    def _begin_stage(self, stage: str, progress: Progress) -> None:
        """Start the progress bar, and the guards from the records of the run."""
        parts = self.parts
        self.observer.begin(stage, parts.config.train.steps)
        self.observer.advance(progress.step)
        rollbacks = sum(event["action"] == "rollback" for event in parts.run.events())
        self.guards = Guards(parts.config.guards, parts.run.metrics(), rollbacks)

    def _evaluation_due(self, step: int) -> bool:
        """Every `evaluate.every` steps; with `train.keep_best` also at the end, unless that is evaluated anyway."""
        config = self.parts.config
        every, last = config.evaluate.every, step == config.train.steps
        if not every or (last and config.evaluate.after):
            return False
        return step % every == 0 or (last and config.train.keep_best)

    def _evaluate(self, step: int) -> Evaluation:
        self.rollouts.wait_idle()
        self.parts.publisher.publish(step)
        evaluation = self.rollouts.run(evaluate_held_out(self.parts, 0.0, step))
        self.parts.publisher.publish(step)
        return evaluation


@contextmanager
def _closing_engine(engine: Engine, rollouts: RolloutSchedule) -> Iterator[None]:
    """Close the engine in its event loop; cancel rollouts first if the run fails."""
    try:
        yield
    except BaseException:
        rollouts.cancel()
        raise
    finally:
        rollouts.run(engine.close())


def _record_start(parts: Parts, progress: Progress, checked: parity.Parity, before: HeldOutResults | None) -> Progress:
    """Record and save step 0: the policy before training."""
    parts.record_metrics(0, {**checked.metrics(), **(before.greedy.metrics("evaluate") if before else {})})
    progress = _score(parts, progress, before.greedy) if before else progress
    parts.save(progress)
    return progress


def _score(parts: Parts, progress: Progress, evaluation: Evaluation) -> Progress:
    """The progress with the held-out score of its step and the best so far."""
    score = evaluation.em.value
    best = score if progress.best is None else max(score, progress.best)
    return replace(progress, best=best, score=score if parts.config.train.keep_best else None)

"""The loop: take questions, run groups, score, learn, publish, record, save."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from sleuth.agent import prompts
from sleuth.algorithms.kl import adapt_coefficient
from sleuth.config.tree import Config
from sleuth.engines.base import Engine
from sleuth.errors import EngineFailure, InputError, Interrupted
from sleuth.evaluate.results import Evaluation
from sleuth.runs.interruption import INTERRUPTION
from sleuth.runs.run import step_of
from sleuth.runs.trajectory import trajectory_row
from sleuth.train import guards, parity
from sleuth.train.assemble import Parts
from sleuth.train.checkpoint import Progress
from sleuth.train.examine import Measured, ask, measure
from sleuth.train.guards import Guards, Verdict, most_severe, resolve
from sleuth.train.metrics import Metrics, finite_only, memory_metrics, speed_metrics, staleness_metrics
from sleuth.train.observer import RunObserver
from sleuth.train.parity import Parity, corrected
from sleuth.train.rollout import RolloutBatch
from sleuth.train.rollout_schedule import OneStepAhead, RolloutSchedule, Synchronous
from sleuth.train.step import StepRates


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run: what it could before and after, where that was asked, and what it took."""

    before: Measured | None
    after: Measured | None
    progress: Progress


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was made: what there is to record, what the guards said of it, and how far the run is then."""

    metrics: Metrics
    verdicts: list[Verdict]
    progress: Progress


def train(parts: Parts, observer: RunObserver, started: float) -> Outcome:
    """Runs the whole training, from the newest checkpoint where there is one."""
    with INTERRUPTION.defer(), parts.held(), upcoming(parts) as rollouts, _closing(parts.engine, rollouts):
        newest = newest_checkpoint(parts)
        _require_records(parts, observer, newest)
        if parts.ranks.rank == 0:
            parts.go_on(0 if newest is None else step_of(newest))
        proof = _prove(parts, observer, rollouts, 0)
        before = _before(parts, observer, rollouts)
        progress = _restore(parts, newest)
        if newest is None:
            _append(parts, 0, {**proof.metrics(), **(before.greedy.metrics("evaluate") if before else {})})
            progress = _judged(parts, progress, before.greedy) if before else progress
            parts.save(progress)
        else:
            proof = _prove(parts, observer, rollouts, progress.step)
        clock = started - progress.seconds
        parts = _corrected(parts, observer, proof)
        progress = _steps(parts, observer, rollouts, progress, _ages(parts, observer, proof), clock)
        after = _after(parts, observer, rollouts, progress)
    if after is not None and parts.config.train.keep_best and parts.ranks.rank == 0:
        parts.run.record_score(progress.step, after.greedy.em.value)
    return Outcome(before, after, replace(progress, seconds=time.monotonic() - clock))


def _steps(
    parts: Parts, observer: RunObserver, rollouts: RolloutSchedule, progress: Progress, recompute: bool, clock: float
) -> Progress:
    """Step after step; what the guards say of each is done."""
    guard = _begin(parts, observer, "training", progress)
    while progress.step < parts.config.train.steps:
        try:
            made = _step(parts, rollouts, guard, progress, recompute)
        except Interrupted:
            # Raised by the rollout alone: the weights are still those of the last finished step.
            parts.saver.wait()
            saved = parts.run.checkpoint(progress.step).is_dir()
            ((saved,), *_) = parts.ranks.gather([saved], "whether the step is saved")
            # A checkpoint that is there is not replaced: a kill in between would lose it.
            if not saved:
                parts.save(progress)
                parts.saver.wait()
            raise
        except guards.NotFinite as failure:
            # Raised by the rollout, on every rank: no episode of the step is learned from, nor written.
            made = Step({}, [guard.non_finite(failure.sentence)], replace(progress, step=progress.step + 1))
        progress = replace(made.progress, seconds=time.monotonic() - clock)
        verdict = most_severe(made.verdicts)
        if verdict is not None and verdict.action == "rollback":
            progress = _roll_back(parts, observer, rollouts, progress, made.verdicts)
            guard = _begin(parts, observer, f"training again from step {progress.step}", progress)
            continue
        _tell(parts, observer, progress.step, made.verdicts)
        if verdict is not None and verdict.action == "stop":
            guards.stop(verdict)
        progress = _record(parts, rollouts, observer, progress, made.metrics)
        guard.record(made.metrics)
    return progress


@contextmanager
def _closing(engine: Engine, rollouts: RolloutSchedule) -> Iterator[None]:
    """An engine is closed where it was asked; where the run breaks off, its episodes are not waited for."""
    try:
        yield
    except BaseException:
        rollouts.cancel()
        raise
    finally:
        rollouts.run(engine.close())


def upcoming(parts: Parts) -> RolloutSchedule:
    """Where the episodes of the run come from."""
    if parts.config.train.mode == "ahead":
        return OneStepAhead(parts.sampler.collect, parts.publisher)
    return Synchronous(parts.sampler.collect)


def _step(parts: Parts, rollouts: RolloutSchedule, guard: Guards, progress: Progress, recompute: bool) -> Step:
    """One round: rollout, score, learn, publish."""
    step, clock, began = progress.step, parts.learner.timer, time.monotonic()
    with clock.time("generate"):
        batch = rollouts.next_batch(step, progress.questions_drawn, step + 1 == parts.config.train.steps)
    metrics = batch.metrics()
    verdicts = guard.check(metrics, guards.failure_examples(batch.trajectories))
    worst = most_severe(verdicts)
    pace = _pace(parts, guard, progress)
    if batch.kept and (worst is None or worst.applies_update):
        metrics |= _learn(parts, batch, pace, guard, recompute, verdicts)
    with clock.time("publish"):
        if parts.config.train.mode == "sync":
            # Everywhere else the engine begins with an empty cache.
            parts.publisher.publish(step + 1, keep_cache=parts.config.engine.stale_cache == "keep")
    with clock.time("write"):
        _write(parts, batch, step + 1)
    taken = {**clock.collect(), "time/step": time.monotonic() - began}
    # Rewards are computed while the episodes are awaited; the batch records them as time/reward.
    taken["time/generate"] = max(0.0, taken["time/generate"] - batch.cost["time/reward"])
    known, policy = {**metrics, **taken}, parts.learner.policy
    metrics |= {f"guard/{verdict.guard}": 1.0 for verdict in verdicts} | taken
    metrics |= speed_metrics(policy, parts.ranks, len(batch.trajectories), known) | {"time/episodes": batch.seconds}
    metrics |= {**batch.cost, **staleness_metrics(batch.trajectories, step), **memory_metrics()}
    tokens = progress.tokens + int(metrics["episode/tokens_all"])
    kl = _next_kl(parts, pace.kl, metrics, len(batch.trajectories))
    reached = replace(progress, step=step + 1, tokens=tokens, questions_drawn=batch.questions_drawn, kl=kl, score=None)
    return Step(metrics, resolve(verdicts), reached)


def _learn(
    parts: Parts, batch: RolloutBatch, pace: StepRates, guard: Guards, recompute: bool, verdicts: list[Verdict]
) -> Metrics:
    """Learns from the episodes; guards are asked about every update, and look at the whole afterwards."""
    learned = parts.learner.learn(batch.kept, pace, guard.update_gate(verdicts), recompute)
    if parts.config.train.mode == "ahead":
        # One version lies between the engine and the trainer: what differs is not the engine.
        learned.pop("parity/k3", None)
        verdicts += guard.check({name: value for name, value in learned.items() if name != "correction/k3"})
    else:
        verdicts += guard.check(learned)
    # Here and not in the next rollout, all of whose episodes would fail before a guard is asked.
    if broken := parts.learner.find_non_finite(batch.kept):
        verdicts.append(guard.non_finite(f"{broken} are not finite after the update"))
    return learned


def _write(parts: Parts, batch: RolloutBatch, step: int) -> None:
    """The trajectories of a step, and what was made of them."""
    learned = parts.learner.token_log.collect()
    if parts.ranks.rank == 0:
        if learned:
            # First: whoever sees the trajectories of a step sees what was made of them.
            parts.run.write_token_log(step, [learned.get(id(each), {}) for each in batch.trajectories])
        parts.run.write_trajectories(step, (trajectory_row(each, score) for each, score in batch.scored()))


def _pace(parts: Parts, guard: Guards, progress: Progress) -> StepRates:
    """The rates of a step by its place in the run, lower after rollbacks."""
    settings = parts.config
    return StepRates.at(progress.step, settings.train, settings.algorithm.critic, progress.kl, guard.rate_scale)


def _next_kl(parts: Parts, coefficient: float, metrics: Mapping[str, float], episodes: int) -> float:
    """The weight of KL in the next step: as it is, unless it is to keep a distance."""
    settings = parts.config.algorithm.kl
    measured = metrics.get("policy/kl")
    if settings.target is None or measured is None or not isfinite(measured):
        return coefficient
    return adapt_coefficient(coefficient, measured, settings.target, settings.horizon, episodes)


def _prove(parts: Parts, observer: RunObserver, rollouts: RolloutSchedule, step: int) -> Parity:
    """Holds the engine against the trainer, and refuses what differs too much; the engine is left as after a start."""
    observer.begin("checking the engine against the trainer", 1)
    parts.publisher.publish(step)
    try:
        found = rollouts.run(INTERRUPTION.cancel_on_signal(_parity(parts)))
    except EngineFailure as failure:
        guards.stop_for_engine(failure)
    parts.publisher.publish(step)
    if parts.ranks.rank == 0:
        parts.run.write_json(parity.FILE, {"step": step, **found.as_json()})
    observer.log(found.line())
    parity.require(found, parts.config.engine.parity_limit, parts.config.model.policy)
    return found


async def _parity(parts: Parts) -> Parity:
    """Measured on questions of the run, as its episodes begin with them."""
    agent, config = parts.agent, parts.config
    asked = parts.sampler.stream.questions[: parity.PROMPTS]
    return await parity.measure(
        parts.engine,
        parts.learner.policy,
        [prompts.render(each, agent.config.template, agent.protocol, agent.tokens) for each in asked],
        context=agent.config.context_tokens,
        concurrent=config.engine.slots,
        temperature=config.train.temperature,
        seed=config.train.seed,
        ranks=parts.ranks,
    )


def _corrected(parts: Parts, observer: RunObserver, proof: Parity) -> Parts:
    """Corrects for what lies between a server and the trainer, where the recipe leaves that to us; says so."""
    algorithm = corrected(parts.config, proof)
    if algorithm is parts.config.algorithm:
        return parts
    settings = algorithm.correction
    observer.log(
        f"correction: each token weighs the ratio of trainer to engine, {settings.high:g} at most, for their logprobs "
        f"differ by more than {parity.SAME:g} (algorithm.correction.level = {settings.level})"
    )
    config = parts.config.model_copy(update={"algorithm": algorithm})
    return replace(parts, config=config, learner=replace(parts.learner, algorithm=algorithm))


def _ages(parts: Parts, observer: RunObserver, proof: Parity) -> bool:
    """Whether old logprobs are computed again by the trainer; says which they are."""
    algorithm = parts.config.algorithm
    recompute = algorithm.recomputes or (algorithm.old == "auto" and not proof.within(parity.SAME))
    observer.log(f"old logprobs: {'recomputed by the trainer' if recompute else 'those of the engine'}")
    return recompute


def _before(parts: Parts, observer: RunObserver, rollouts: RolloutSchedule) -> Measured | None:
    if not parts.config.evaluate.before:
        return None
    return measure(parts, observer, rollouts, 0, "asking the held-out questions before")


def _after(parts: Parts, observer: RunObserver, rollouts: RolloutSchedule, progress: Progress) -> Measured | None:
    if not parts.config.evaluate.after:
        return None
    return measure(parts, observer, rollouts, progress.step, "asking the held-out questions after")


def _record(
    parts: Parts, rollouts: RolloutSchedule, observer: RunObserver, progress: Progress, metrics: Mapping[str, float]
) -> Progress:
    """Metrics first, then the checkpoint: what a checkpoint has seen is always on the disk."""
    config = parts.config
    # Every step after a checkpoint that could not be written is one more to lose.
    parts.saver.check()
    last, best = progress.step == config.train.steps, False
    if _evaluates(config, progress.step):
        rollouts.wait_idle()
        parts.publisher.publish(progress.step)
        found = rollouts.run(ask(parts, 0.0, progress.step))
        parts.publisher.publish(progress.step)
        metrics = {**metrics, **found.metrics("evaluate")}
        best = progress.best is None or found.em.value > progress.best
        progress = _judged(parts, progress, found)
    _append(parts, progress.step, finite_only(metrics))
    observer.step(progress.step, metrics)
    observer.advance()
    if last or progress.step % config.train.save_every == 0 or (best and config.train.keep_best):
        parts.save(progress)
    return progress


def _evaluates(config: Config, step: int) -> bool:
    """Whether the held-out questions are asked at a step; those asked after training are not asked twice.

    Where the best checkpoint is kept, the last step is a candidate whatever its number.
    """
    every, last = config.evaluate.every, step == config.train.steps
    if not every or (last and config.evaluate.after):
        return False
    return step % every == 0 or (last and config.train.keep_best)


def _judged(parts: Parts, progress: Progress, found: Evaluation) -> Progress:
    """The progress with the held-out score of its step, and the best so far."""
    score = found.em.value
    best = score if progress.best is None else max(score, progress.best)
    return replace(progress, best=best, score=score if parts.config.train.keep_best else None)


def _append(parts: Parts, step: int, metrics: Mapping[str, float]) -> None:
    if parts.ranks.rank == 0:
        parts.run.append_metrics(step, metrics)
        parts.trackers.log(step, metrics)


def _tell(parts: Parts, observer: RunObserver, step: int, verdicts: Sequence[Verdict]) -> None:
    for verdict in verdicts:
        observer.log(verdict.line(step))
        if parts.ranks.rank == 0:
            parts.run.append_event(step, verdict.event())


def _roll_back(
    parts: Parts, observer: RunObserver, rollouts: RolloutSchedule, progress: Progress, verdicts: Sequence[Verdict]
) -> Progress:
    """Back to the newest checkpoint that is known to be good; later ones are removed, with their records.

    The target is loaded on every rank before anything is removed. Checkpoints are removed before the rollback is
    recorded: a run killed in between repeats the same step.
    """
    parts.saver.wait()
    rollouts.discard()
    stale = int(parts.config.train.mode == "ahead")
    good = guards.last_good(map(step_of, parts.run.checkpoints()), progress.step, stale)
    # The first rank's answer holds: only it knows when a checkpoint has its name.
    ((good,), *_) = parts.ranks.gather([good], "the checkpoint to return to")
    folder = parts.run.checkpoint(good)
    if not folder.is_dir():
        guards.stop_without_checkpoint(most_severe(verdicts), folder)
    parts.verify(folder)
    restored = parts.restore(folder)
    parts.ranks.barrier("the rollback")
    if parts.ranks.rank == 0:
        parts.run.remove_checkpoints_after(good)
    _tell(parts, observer, progress.step, verdicts)
    _resume_records(parts, good, good)
    return replace(restored, seconds=progress.seconds)


def _restore(parts: Parts, folder: Path | None) -> Progress:
    progress = Progress(kl=parts.config.algorithm.kl.coefficient)
    if folder is not None:
        progress = parts.restore(folder)
    _resume_records(parts, progress.step, progress.step if folder is not None else -1)
    return progress


def newest_checkpoint(parts: Parts) -> Path | None:
    """The newest checkpoint as the first rank sees it, once it has put away what an interrupted run left."""
    mine = parts.run.latest() if parts.ranks.rank == 0 else None
    ((newest,), *_) = parts.ranks.gather([mine], "the newest checkpoint")
    return newest


def _require_records(parts: Parts, observer: RunObserver, newest: Path | None) -> None:
    """Refuses records that do not fit the checkpoint to go on from: what they lack would be lost without a word."""
    if newest is not None:
        parts.run.require_complete_metrics(step_of(newest))
        if not parts.verify(newest):
            observer.log(f"{newest} is of an older version and has no checksums: it is loaded without being verified")
        return
    steps = [row.get("step", 0) for row in parts.run.metrics()]
    # The first checkpoint is there before the second is begun.
    if max(steps, default=0) > parts.config.train.save_every:
        raise InputError(
            f"{parts.run.path} has recorded {max(steps)} steps and holds no checkpoint; put its checkpoints back, or "
            "begin a new run"
        )


def _resume_records(parts: Parts, step: int, recorded: int) -> None:
    """Drops the records after the step `recorded`, and publishes the weights of `step`."""
    if parts.ranks.rank == 0:
        parts.run.rewind(recorded)
    parts.ranks.barrier(f"the state of step {step}")
    parts.publisher.publish(step)


def _begin(parts: Parts, observer: RunObserver, stage: str, progress: Progress) -> Guards:
    """The guards of a run as its record left them, when a stage of training begins."""
    observer.begin(stage, parts.config.train.steps)
    observer.advance(progress.step)
    rollbacks = sum(event["action"] == "rollback" for event in parts.run.events())
    return Guards(parts.config.guards, parts.run.metrics(), rollbacks)

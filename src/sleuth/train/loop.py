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
from sleuth.train import gauges, guards, parity
from sleuth.train.assemble import Parts
from sleuth.train.checkpoint import Progress
from sleuth.train.examine import Measured, ask, measure
from sleuth.train.guards import Guards
from sleuth.train.parity import Parity, corrected
from sleuth.train.rollout import Harvest
from sleuth.train.step import Pace, critic_rate, learning_rate
from sleuth.train.upcoming import Ahead, InTurn, Upcoming
from sleuth.train.verdict import Verdict, gravest, marks, settled
from sleuth.train.watch import Watch

Metrics = dict[str, float]


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


def train(parts: Parts, watch: Watch, started: float) -> Outcome:
    """Runs the whole training, from the newest checkpoint where there is one."""
    with INTERRUPTION.defer(), parts.held(), upcoming(parts) as coming, _closing(parts.engine, coming):
        newest = newest_checkpoint(parts)
        _require_records(parts, watch, newest)
        if parts.ranks.rank == 0:
            parts.go_on(0 if newest is None else step_of(newest))
        proof = _prove(parts, watch, coming, 0)
        before = _before(parts, watch, coming)
        progress = _restore(parts, newest)
        if newest is None:
            _append(parts, 0, {**proof.metrics(), **(before.greedy.metrics("evaluate") if before else {})})
            progress = _judged(parts, progress, before.greedy) if before else progress
            parts.save(progress)
        else:
            proof = _prove(parts, watch, coming, progress.step)
        clock = started - progress.seconds
        parts = _corrected(parts, watch, proof)
        progress = _steps(parts, watch, coming, progress, _ages(parts, watch, proof), clock)
        after = _after(parts, watch, coming, progress)
    if after is not None and parts.config.train.keep_best and parts.ranks.rank == 0:
        parts.run.record_score(progress.step, after.greedy.em.value)
    return Outcome(before, after, replace(progress, seconds=time.monotonic() - clock))


def _steps(parts: Parts, watch: Watch, coming: Upcoming, progress: Progress, recompute: bool, clock: float) -> Progress:
    """Step after step; what the guards say of each is done."""
    guard = _begin(parts, watch, "training", progress)
    while progress.step < parts.config.train.steps:
        try:
            made = _step(parts, coming, guard, progress, recompute)
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
            made = Step({}, [guard.broken(failure.sentence)], replace(progress, step=progress.step + 1))
        progress = replace(made.progress, seconds=time.monotonic() - clock)
        verdict = gravest(made.verdicts)
        if verdict is not None and verdict.action == "rollback":
            progress = _roll_back(parts, watch, coming, progress, made.verdicts)
            guard = _begin(parts, watch, f"training again from step {progress.step}", progress)
            continue
        _tell(parts, watch, progress.step, made.verdicts)
        if verdict is not None and verdict.action == "stop":
            guards.stop(verdict)
        progress = _record(parts, coming, watch, progress, made.metrics)
        guard.remember(made.metrics)
    return progress


@contextmanager
def _closing(engine: Engine, coming: Upcoming) -> Iterator[None]:
    """An engine is closed where it was asked; where the run breaks off, its episodes are not waited for."""
    try:
        yield
    except BaseException:
        coming.cancel()
        raise
    finally:
        coming.run(engine.close())


def upcoming(parts: Parts) -> Upcoming:
    """Where the episodes of the run come from."""
    if parts.config.train.mode == "ahead":
        return Ahead(parts.asker.harvest, parts.publisher)
    return InTurn(parts.asker.harvest)


def _step(parts: Parts, coming: Upcoming, guard: Guards, progress: Progress, recompute: bool) -> Step:
    """One round: rollout, score, learn, publish."""
    step, clock, began = progress.step, parts.learner.clock, time.monotonic()
    with clock.part("generate"):
        harvest = coming.take(step, progress.asked, step + 1 == parts.config.train.steps)
    metrics = harvest.metrics()
    verdicts = guard.verdicts(metrics, guards.causes(harvest.trajectories))
    worst = gravest(verdicts)
    pace = _pace(parts, guard, progress)
    if harvest.kept and (worst is None or worst.applies):
        metrics |= _learn(parts, harvest, pace, guard, recompute, verdicts)
    with clock.part("publish"):
        if parts.config.train.mode == "sync":
            # Everywhere else the engine begins with an empty cache.
            parts.publisher.publish(step + 1, keep_cache=parts.config.engine.stale_cache == "keep")
    with clock.part("write"):
        _write(parts, harvest, step + 1)
    taken = {**clock.taken(), "time/step": time.monotonic() - began}
    # Rewards are computed while the episodes are awaited; `gauges` records them as time/reward.
    taken["time/generate"] = max(0.0, taken["time/generate"] - harvest.spent["time/reward"])
    metrics |= {**marks(verdicts), **taken, **gauges.read(parts, harvest, step, {**metrics, **taken})}
    tokens = progress.tokens + int(metrics["episode/tokens_all"])
    kl = _next_kl(parts, pace.kl, metrics, len(harvest.trajectories))
    reached = replace(progress, step=step + 1, tokens=tokens, asked=harvest.asked, kl=kl, score=None)
    return Step(metrics, settled(verdicts), reached)


def _learn(
    parts: Parts, harvest: Harvest, pace: Pace, guard: Guards, recompute: bool, verdicts: list[Verdict]
) -> Metrics:
    """Learns from the episodes; guards are asked about every update, and look at the whole afterwards."""
    learned = parts.learner.learn(harvest.kept, pace, guard.gate(verdicts), recompute)
    if parts.config.train.mode == "ahead":
        # One version lies between the engine and the trainer: what differs is not the engine.
        learned.pop("parity/k3", None)
        verdicts += guard.verdicts({name: value for name, value in learned.items() if name != "correction/k3"})
    else:
        verdicts += guard.verdicts(learned)
    # Here and not in the next rollout, all of whose episodes would fail before a guard is asked.
    if broken := parts.learner.broken(harvest.kept):
        verdicts.append(guard.broken(f"{broken} are not finite after the update"))
    return learned


def _write(parts: Parts, harvest: Harvest, step: int) -> None:
    """The trajectories of a step, and what was made of them."""
    learned = parts.learner.learned.taken()
    if parts.ranks.rank == 0:
        if learned:
            # First: whoever sees the trajectories of a step sees what was made of them.
            parts.run.write_token_log(step, [learned.get(id(each), {}) for each in harvest.trajectories])
        parts.run.write_trajectories(step, (trajectory_row(each, score) for each, score in harvest.scored()))


def _pace(parts: Parts, guard: Guards, progress: Progress) -> Pace:
    """The rates of a step by its place in the run, lower after rollbacks."""
    train, critic = parts.config.train, parts.config.algorithm.critic
    rates = learning_rate(train, progress.step), critic_rate(train, critic, progress.step)
    policy_rate, critics_rate = (rate * guard.rate for rate in rates)
    return Pace(policy_rate, progress.kl, critics_rate, progress.step < critic.warmup)


def _next_kl(parts: Parts, coefficient: float, metrics: Mapping[str, float], episodes: int) -> float:
    """The weight of KL in the next step: as it is, unless it is to keep a distance."""
    settings = parts.config.algorithm.kl
    measured = metrics.get("policy/kl")
    if settings.target is None or measured is None or not isfinite(measured):
        return coefficient
    return adapt_coefficient(coefficient, measured, settings.target, settings.horizon, episodes)


def _prove(parts: Parts, watch: Watch, coming: Upcoming, step: int) -> Parity:
    """Holds the engine against the trainer, and refuses what differs too much; the engine is left as after a start."""
    watch.begin("checking the engine against the trainer", 1)
    parts.publisher.publish(step)
    try:
        found = coming.run(INTERRUPTION.cancel_on_signal(_parity(parts)))
    except EngineFailure as failure:
        guards.engine(failure)
    parts.publisher.publish(step)
    if parts.ranks.rank == 0:
        parts.run.write_json(parity.FILE, {"step": step, **found.as_json()})
    watch.tell(found.line())
    parity.require(found, parts.config.engine.parity_limit, parts.config.model.policy)
    return found


async def _parity(parts: Parts) -> Parity:
    """Measured on questions of the run, as its episodes begin with them."""
    agent, config = parts.agent, parts.config
    asked = parts.asker.stream.questions[: parity.PROMPTS]
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


def _corrected(parts: Parts, watch: Watch, proof: Parity) -> Parts:
    """Corrects for what lies between a server and the trainer, where the recipe leaves that to us; says so."""
    algorithm = corrected(parts.config, proof)
    if algorithm is parts.config.algorithm:
        return parts
    settings = algorithm.correction
    watch.tell(
        f"correction: each token weighs the ratio of trainer to engine, {settings.high:g} at most, for their logprobs "
        f"differ by more than {parity.SAME:g} (algorithm.correction.level = {settings.level})"
    )
    config = parts.config.model_copy(update={"algorithm": algorithm})
    return replace(parts, config=config, learner=replace(parts.learner, algorithm=algorithm))


def _ages(parts: Parts, watch: Watch, proof: Parity) -> bool:
    """Whether old logprobs are computed again by the trainer; says which they are."""
    algorithm = parts.config.algorithm
    recompute = algorithm.recomputes or (algorithm.old == "auto" and not proof.within(parity.SAME))
    watch.tell(f"old logprobs: {'recomputed by the trainer' if recompute else 'those of the engine'}")
    return recompute


def _before(parts: Parts, watch: Watch, coming: Upcoming) -> Measured | None:
    if not parts.config.evaluate.before:
        return None
    return measure(parts, watch, coming, 0, "asking the held-out questions before")


def _after(parts: Parts, watch: Watch, coming: Upcoming, progress: Progress) -> Measured | None:
    if not parts.config.evaluate.after:
        return None
    return measure(parts, watch, coming, progress.step, "asking the held-out questions after")


def _record(parts: Parts, coming: Upcoming, watch: Watch, progress: Progress, metrics: Mapping[str, float]) -> Progress:
    """Metrics first, then the checkpoint: what a checkpoint has seen is always on the disk."""
    config = parts.config
    # Every step after a checkpoint that could not be written is one more to lose.
    parts.saver.check()
    last, best = progress.step == config.train.steps, False
    if _evaluates(config, progress.step):
        coming.settle()
        parts.publisher.publish(progress.step)
        found = coming.run(ask(parts, 0.0, progress.step))
        parts.publisher.publish(progress.step)
        metrics = {**metrics, **found.metrics("evaluate")}
        best = progress.best is None or found.em.value > progress.best
        progress = _judged(parts, progress, found)
    _append(parts, progress.step, guards.finite(metrics))
    watch.step(progress.step, metrics)
    watch.advance()
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


def _tell(parts: Parts, watch: Watch, step: int, verdicts: Sequence[Verdict]) -> None:
    for verdict in verdicts:
        watch.tell(verdict.line(step))
        if parts.ranks.rank == 0:
            parts.run.append_event(step, verdict.event())


def _roll_back(
    parts: Parts, watch: Watch, coming: Upcoming, progress: Progress, verdicts: Sequence[Verdict]
) -> Progress:
    """Back to the newest checkpoint that is known to be good; later ones are removed, with their records.

    The target is loaded on every rank before anything is removed. Checkpoints are removed before the rollback is
    recorded: a run killed in between repeats the same step.
    """
    parts.saver.wait()
    coming.forget()
    stale = int(parts.config.train.mode == "ahead")
    good = guards.last_good(map(step_of, parts.run.checkpoints()), progress.step, stale)
    # The first rank's answer holds: only it knows when a checkpoint has its name.
    ((good,), *_) = parts.ranks.gather([good], "the checkpoint to return to")
    folder = parts.run.checkpoint(good)
    if not folder.is_dir():
        guards.no_target(gravest(verdicts), folder)
    parts.verify(folder)
    restored = parts.restore(folder)
    parts.ranks.barrier("the rollback")
    if parts.ranks.rank == 0:
        parts.run.remove_checkpoints_after(good)
    _tell(parts, watch, progress.step, verdicts)
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


def _require_records(parts: Parts, watch: Watch, newest: Path | None) -> None:
    """Refuses records that do not fit the checkpoint to go on from: what they lack would be lost without a word."""
    if newest is not None:
        parts.run.require_complete_metrics(step_of(newest))
        if not parts.verify(newest):
            watch.tell(f"{newest} is of an older version and has no checksums: it is loaded without being verified")
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


def _begin(parts: Parts, watch: Watch, stage: str, progress: Progress) -> Guards:
    """The guards of a run as its record left them, when a stage of training begins."""
    watch.begin(stage, parts.config.train.steps)
    watch.advance(progress.step)
    rollbacks = sum(event["action"] == "rollback" for event in parts.run.events())
    return Guards(parts.config.guards, parts.run.metrics(), rollbacks)

"""The loop: take questions, run groups, score, learn, publish, record, save."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sleuth.agent import prompts
from sleuth.agent.batch import run_batch
from sleuth.agent.episode import Task
from sleuth.errors import EngineFailure
from sleuth.evaluate.suite import Evaluation, evaluate
from sleuth.records import Group, Question, Score, StopReason, Trajectory
from sleuth.reward.rubric import Rubric
from sleuth.runs import row
from sleuth.train import checkpoint, guards, parity
from sleuth.train.assemble import Parts
from sleuth.train.checkpoint import Progress
from sleuth.train.parity import Parity
from sleuth.train.watch import Watch


@dataclass(frozen=True, slots=True)
class Measured:
    """The held-out questions asked greedily and sampled."""

    greedy: Evaluation
    sampled: Evaluation


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run: what it could before and after, and what it took."""

    before: Measured
    after: Measured
    progress: Progress


def train(parts: Parts, watch: Watch, started: float) -> Outcome:
    """Runs the whole training, from the newest checkpoint where there is one."""
    with parts.run.held(), asyncio.Runner() as runner:
        proof = _prove(parts, watch, runner, 0)
        before = _measure(parts, watch, runner, 0, "asking the held-out questions before")
        progress = _restore(parts)
        if progress.step == 0:
            parts.run.append_metrics(0, {**proof.metrics(), **before.greedy.metrics("evaluate")})
        else:
            _prove(parts, watch, runner, progress.step)
        clock = started - progress.seconds
        watch.begin("training", parts.config.train.steps)
        watch.advance(progress.step)
        for step in range(progress.step, parts.config.train.steps):
            metrics = _step(parts, runner, step)
            progress = Progress(
                step + 1, time.monotonic() - clock, progress.tokens + int(metrics["episode/tokens_all"])
            )
            _record(parts, runner, watch, progress, metrics)
        after = _measure(parts, watch, runner, progress.step, "asking the held-out questions after")
        return Outcome(before, after, Progress(progress.step, time.monotonic() - clock, progress.tokens))


def _prove(parts: Parts, watch: Watch, runner: asyncio.Runner, step: int) -> Parity:
    """Holds the engine against the trainer, and refuses what differs too much; the engine is left as after a start."""
    watch.begin("checking the engine against the trainer", 1)
    try:
        found = runner.run(_parity(parts))
    except EngineFailure as failure:
        guards.engine(failure)
    parts.engine.publish(None, step)
    parts.run.write_json(parity.FILE, {"step": step, **found.as_json()})
    watch.tell(found.line())
    parity.require(found, parts.config.engine.parity, parts.config.model.policy)
    return found


async def _parity(parts: Parts) -> Parity:
    """Measured on questions of the run, as its episodes begin with them."""
    agent, config = parts.agent, parts.config
    asked = parts.stream.questions[: parity.PROMPTS]
    return await parity.measure(
        parts.engine,
        parts.learner.policy,
        [prompts.render(each, agent.config.prompt, agent.protocol, agent.tokens) for each in asked],
        context=agent.config.context_tokens,
        concurrent=config.engine.slots,
        temperature=config.train.temperature,
        seed=config.train.seed,
    )


def _step(parts: Parts, runner: asyncio.Runner, step: int) -> dict[str, float]:
    """One round: rollout, score, learn, publish."""
    began = time.monotonic()
    trajectories = runner.run(_rollout(parts, parts.stream.at(step), step))
    rolled = time.monotonic()
    guards.episodes(trajectories, parts.config.train.search_failures)
    groups = group(trajectories, parts.rubric)
    # One sample has nothing to be compared with, unless the run takes one of each question and no more.
    kept = [each for each in groups if len(each.trajectories) >= min(2, parts.config.train.samples)]
    learned = parts.learner.learn(kept, step) if kept else {}
    parts.engine.publish(None, step + 1)
    parts.run.write_trajectories(step + 1, (row(each, score) for each, score in _scored(trajectories, groups)))
    ended = time.monotonic()
    times = {"time/generate": rolled - began, "time/train": ended - rolled, "time/step": ended - began}
    metrics = {**_episodes(groups), **_stops(trajectories), "group/dropped": float(len(groups) - len(kept)), **learned}
    guards.metrics(metrics)
    return {**metrics, **times}


async def _rollout(parts: Parts, questions: Sequence[Question], step: int) -> list[Trajectory]:
    """Every question as often as a group has samples; groups are keyed by their place in the step."""
    train = parts.config.train
    tasks = [
        Task(question, place, sample, step + 1, train.seed, train.temperature)
        for place, question in enumerate(questions)
        for sample in range(train.samples)
    ]
    return await run_batch(parts.agent, tasks, parts.config.engine.slots)


def group(trajectories: Sequence[Trajectory], rubric: Rubric) -> list[Group]:
    """The usable trajectories of each group with their scores."""
    keyed: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        keyed.setdefault(trajectory.group, [])
        if trajectory.stop.usable:
            keyed[trajectory.group].append(trajectory)
    questions = {trajectory.group: trajectory.question for trajectory in trajectories}
    return [
        Group(questions[key], tuple(usable), tuple(rubric.score(each.question, each) for each in usable))
        for key, usable in keyed.items()
    ]


def _episodes(groups: Sequence[Group]) -> dict[str, float]:
    """Means over the usable episodes, of which there are some."""
    scores = [score for each in groups for score in each.scores]
    trajectories = [trajectory for each in groups for trajectory in each.trajectories]
    count = len(scores)
    spread = sum(len({score.total for score in each.scores}) > 1 for each in groups)
    parts = {
        f"episode/{name}": sum(score.parts[name] for score in scores) / count
        for name in ("em", "f1", "format", "searches")
    }
    sampled = sum(len(trajectory.logprobs) for trajectory in trajectories)
    return {
        "reward/mean": sum(score.total for score in scores) / count,
        **parts,
        "episode/tokens": sampled / count,
        "episode/tokens_all": float(sum(len(trajectory.ids) for trajectory in trajectories)),
        "group/with_spread": spread / len(groups),
    }


def _stops(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The share of each reason to end."""
    counts = Counter(trajectory.stop for trajectory in trajectories)
    return {f"stop/{reason.value}": counts[reason] / len(trajectories) for reason in StopReason}


def _scored(trajectories: Sequence[Trajectory], groups: Sequence[Group]) -> list[tuple[Trajectory, Score | None]]:
    known = {id(each): score for one in groups for each, score in zip(one.trajectories, one.scores, strict=True)}
    return [(trajectory, known.get(id(trajectory))) for trajectory in trajectories]


def _record(
    parts: Parts, runner: asyncio.Runner, watch: Watch, progress: Progress, metrics: Mapping[str, float]
) -> None:
    """Metrics first, then the checkpoint: what a checkpoint has seen is always on the disk."""
    config = parts.config
    last = progress.step == config.train.steps
    if config.evaluate.every and progress.step % config.evaluate.every == 0 and not last:
        metrics = {**metrics, **runner.run(_ask(parts, 0.0, progress.step, None)).metrics("evaluate")}
        parts.engine.publish(None, progress.step)
    parts.run.append_metrics(progress.step, metrics)
    watch.step(progress.step, metrics)
    watch.advance()
    if last or progress.step % config.train.save_every == 0:
        checkpoint.save(parts.run, parts.learner.policy, parts.learner.optimiser, progress, config.train.keep)


def _restore(parts: Parts) -> Progress:
    latest = parts.run.latest()
    progress = Progress(0, 0.0, 0)
    if latest is not None:
        progress = checkpoint.restore(latest, parts.learner.policy, parts.learner.optimiser)
    parts.run.rewind(progress.step if latest is not None else -1)
    parts.engine.publish(None, progress.step)
    return progress


def _measure(parts: Parts, watch: Watch, runner: asyncio.Runner, step: int, stage: str) -> Measured:
    """Asks the held-out questions greedily and sampled; the engine is left as after a start."""
    watch.begin(stage, 2 * len(parts.held_out))
    greedy, sampled = (runner.run(_ask(parts, temperature, step, watch)) for temperature in (0.0, 1.0))
    parts.engine.publish(None, step)
    return Measured(greedy, sampled)


async def _ask(parts: Parts, temperature: float, step: int, watch: Watch | None) -> Evaluation:
    asked = await evaluate(
        parts.agent,
        parts.held_out,
        parts.rubric,
        temperature=temperature,
        step=step,
        concurrent=parts.config.engine.slots,
        done=None if watch is None else lambda _: watch.advance(),
    )
    guards.episodes([each.trajectory for each in asked.asked], parts.config.train.search_failures)
    return asked

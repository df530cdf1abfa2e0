"""Discrete-event simulation of training with separate or shared trainers and rollout workers.

One schedule covers all modes. Groups are numbered in the order of the questions. Group g may start if the weights that
it starts with can be at most `staleness` versions old when it is trained: g // questions <= version + staleness. The
trainer takes the oldest finished groups, and waits for an older one if that one would otherwise become too old. No
group is discarded. `sync` is staleness 0. `ahead` is staleness 1 with new weights only between two batches.
"""

import random
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Literal

from sleuth.cluster.rates import ClusterRates, GroupShape
from sleuth.cluster.scenario import Scenario
from sleuth.cluster.worker_queue import NEVER, SimulatedEpisode, WorkerQueue


@dataclass(frozen=True, slots=True)
class Prediction:
    """Result of a simulation: throughput, shares of the time, staleness of the trained tokens, and counts."""

    trajectories_per_second: float
    step_seconds: float
    trainer: dict[str, float]
    rollouts: dict[str, float]
    staleness_mean: float
    staleness_max: int
    asked: int
    finished: int
    trained: int


@dataclass(slots=True)
class SimulatedGroup:
    """A group of episodes; `version` is that of the weights when it was admitted."""

    version: int
    episodes: list[SimulatedEpisode]
    unfinished: int


@dataclass(slots=True)
class AgeSum:
    """Ages of trained tokens in weight versions: their sum, their number, and the largest."""

    total: float = 0.0
    tokens: float = 0.0
    largest: int = 0

    def add(self, episodes: Sequence[SimulatedEpisode], version: int) -> None:
        """Add the tokens of episodes that are trained at a version."""
        for episode in episodes:
            sampled = episode.shape.sampled
            self.tokens += sampled
            self.total += sampled * version - episode.version_sum
            if sampled:
                self.largest = max(self.largest, version - episode.oldest)


@dataclass(slots=True)
class Trainer:
    """The trainer processes, which work as one; `left` is the work of the phase in seconds at full speed."""

    phase: Literal["idle", "train", "publish"] = "idle"
    left: float = 0.0
    speed: float = 1.0
    version: int = 0  # of the weights: the number of finished steps
    epoch: int = 0
    now: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "publish": 0.0, "idle": 0.0})

    def advance(self, now: float) -> None:
        """Work until `now`, which is at most the next event."""
        self.seconds[self.phase] += now - self.now
        self.left -= (now - self.now) * self.speed
        self.now = now

    def next_event(self) -> float:
        return NEVER if self.phase == "idle" else self.now + max(0.0, self.left) / self.speed


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Seconds of the trainer and of all rollout workers by what they did, until a moment."""

    now: float
    trainer: dict[str, float]
    rollouts: dict[str, float]

    def shares_since(self, before: "Snapshot", workers: int) -> tuple[dict[str, float], dict[str, float]]:
        """Return the shares of the time since an earlier snapshot, of the trainer and of the rollout workers."""
        seconds = self.now - before.now
        trainer = {name: (value - before.trainer[name]) / seconds for name, value in self.trainer.items()}
        rollouts = {name: (value - before.rollouts[name]) / seconds / workers for name, value in self.rollouts.items()}
        return trainer, rollouts


def draw_groups(rates: ClusterRates, samples: int, seed: int) -> Iterator[GroupShape]:
    """Draw groups of so many samples from those of the rates, without end."""
    draw = random.Random(seed)
    while True:
        group = draw.choice(rates.groups)
        yield tuple(draw.sample(group, samples) if samples <= len(group) else draw.choices(group, k=samples))


def predict(scenario: Scenario, rates: ClusterRates) -> Prediction:
    """Simulate a scenario with episodes drawn by its seed."""
    steps = scenario.warmup + scenario.steps + scenario.staleness
    simulation = Simulation(scenario, rates, draw_groups(rates, scenario.samples, scenario.seed), steps)
    simulation.run()
    return simulation.prediction()


class Simulation:
    """Simulates so many training steps on these groups."""

    def __init__(self, scenario: Scenario, rates: ClusterRates, groups: Iterator[GroupShape], steps: int) -> None:
        self.scenario, self.rates = scenario, rates
        self.now = self.collected = 0.0  # `collected`: the end of the last episode
        self.trainer = Trainer()
        self.workers = [
            WorkerQueue(rates, scenario.limits, self._schedule_search, self._finish) for _ in range(scenario.workers)
        ]
        self.asked = self.finished = self.trained = 0  # trajectories
        self._shapes, self._left = groups, steps * scenario.questions
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._admitted = 0
        # Before the first step, `ahead` publishes the initial weights.
        self._published = -1 if scenario.mode == "ahead" else 0
        self._groups: dict[int, SimulatedGroup] = {}  # admitted and not trained
        self._buffer: list[int] = []  # finished and not trained
        self._untrained: Counter[int] = Counter()  # groups by the version at which they were admitted
        self._batch: list[SimulatedGroup] = []
        self._computing: set[int] = set()
        self._ages = AgeSum()
        self._snapshots: dict[int, Snapshot] = {}  # by step

    def run(self) -> None:
        """Simulate until every group is trained."""
        self._admit()
        while self._events:
            self.now, _, happen = heappop(self._events)
            happen()

    def prediction(self) -> Prediction:
        """Summarise the steps after the warm-up."""
        scenario = self.scenario
        before, after = (self._snapshots[scenario.warmup + steps] for steps in (0, scenario.steps))
        trainer, rollouts = after.shares_since(before, scenario.workers)
        seconds = (after.now - before.now) / scenario.steps
        return Prediction(
            trajectories_per_second=scenario.questions * scenario.samples / seconds,
            step_seconds=seconds,
            trainer=trainer,
            rollouts=rollouts,
            staleness_mean=self._ages.total / max(1.0, self._ages.tokens),
            staleness_max=self._ages.largest,
            asked=self.asked,
            finished=self.finished,
            trained=self.trained,
        )

    def _at(self, moment: float, happen: Callable[[], None]) -> None:
        if moment < NEVER:
            heappush(self._events, (moment, next(self._order), happen))

    def _admit(self) -> None:
        """Give groups to the workers with the fewest episodes, as far as the bound of the staleness allows."""
        scenario = self.scenario
        while self._left and self._admitted // scenario.questions <= self._published + scenario.staleness:
            worker = min(self.workers, key=lambda each: each.load)
            if worker.queued or worker.in_flight >= scenario.limits.concurrency:
                return
            number, self._admitted, self._left = self._admitted, self._admitted + 1, self._left - 1
            shapes = enumerate(next(self._shapes))
            episodes = [SimulatedEpisode(shape, number, sample > 0) for sample, shape in shapes]
            version = max(0, self._published)
            self._groups[number] = SimulatedGroup(version, episodes, len(episodes))
            self._untrained[version] += 1
            self.asked += len(episodes)
            worker.advance(self.now)
            worker.add(episodes)
            self._reschedule(worker)

    def _reschedule(self, worker: WorkerQueue) -> None:
        worker.epoch += 1
        self._at(worker.next_event(), partial(self._complete, worker, worker.epoch))
        if self.scenario.rollouts is None:
            was_computing = bool(self._computing)
            (self._computing.add if worker.is_computing else self._computing.discard)(id(worker))
            if bool(self._computing) != was_computing and self.trainer.phase == "train":
                self._reschedule_trainer()

    def _complete(self, worker: WorkerQueue, epoch: int) -> None:
        if epoch == worker.epoch:
            worker.advance(self.now)
            worker.complete()
            self._reschedule(worker)
            self._admit()
            self._train()

    def _schedule_search(self, worker: WorkerQueue, episode: SimulatedEpisode) -> None:
        def end() -> None:
            worker.advance(self.now)
            worker.end_search(episode)
            self._reschedule(worker)

        self._at(self.now + self.rates.search, end)

    def _finish(self, episode: SimulatedEpisode) -> None:
        self.finished, self.collected = self.finished + 1, self.now
        group = self._groups[episode.group]
        group.unfinished -= 1
        if not group.unfinished:
            insort(self._buffer, episode.group)

    def _train(self) -> None:
        """Start a step if the trainer is idle and the groups of a batch are there."""
        if self.trainer.phase != "idle" or not self._take_batch():
            return
        publishes = self.scenario.mode == "ahead" and self._published < self.trainer.version
        self._begin("publish" if publishes else "train")

    def _take_batch(self) -> bool:
        """Take the oldest finished groups, unless a group that is left could then not be trained in time."""
        questions, version = self.scenario.questions, self.trainer.version
        numbers = self._buffer[:questions]
        if len(numbers) < questions:
            return False
        taken = Counter(self._groups[number].version for number in numbers)
        left = 0
        for each in sorted(self._untrained):
            left += self._untrained[each] - taken[each]
            if left > (each + self.scenario.staleness - version) * questions:
                return False
        del self._buffer[:questions]
        self._batch = [self._groups.pop(number) for number in numbers]
        self._untrained = +(self._untrained - taken)
        return True

    def _begin(self, phase: Literal["train", "publish"]) -> None:
        trainer = self.trainer
        trainer.advance(self.now)
        trainer.phase, trainer.left = phase, self._train_seconds() if phase == "train" else self.rates.publish
        self._reschedule_trainer()
        self._change_workers(paused=phase == "publish")

    def _train_seconds(self) -> float:
        scenario, scored, trained = self.scenario, 0, 0
        for group in self._batch:
            tokens = sum(episode.shape.tokens for episode in group.episodes)
            rewards = {episode.shape.reward for episode in group.episodes}
            scored += tokens
            trained += 0 if scenario.drops_flat_groups and len(rewards) == 1 and None not in rewards else tokens
        return self.rates.train_seconds(trained, scored, scenario.trainers, scenario.updates)

    def _reschedule_trainer(self) -> None:
        trainer = self.trainer
        trainer.advance(self.now)
        trainer.speed = self.rates.overlap if trainer.phase == "train" and self._computing else 1.0
        trainer.epoch += 1
        self._at(trainer.next_event(), partial(self._end_phase, trainer.epoch))

    def _change_workers(self, *, paused: bool = False, version: int | None = None) -> None:
        """Pause the workers, let them continue with new weights, or change the speed of those on the trainer's GPU."""
        shares_device = self.scenario.rollouts is None and self.trainer.phase == "train"
        for worker in self.workers:
            worker.advance(self.now)
            if version is not None:
                worker.load_weights(version)
            worker.paused, worker.speed = paused, self.rates.overlap if shares_device else 1.0
            self._reschedule(worker)

    def _end_phase(self, epoch: int) -> None:
        trainer = self.trainer
        if epoch != trainer.epoch:
            return
        trainer.advance(self.now)
        phase, trainer.phase = trainer.phase, "idle"
        if phase == "train":
            self._end_step()
            if self.scenario.mode != "ahead":
                self._begin("publish")
                return
            self._change_workers()
        else:
            self._published = trainer.version
            self._change_workers(version=trainer.version)
            if self._batch:
                self._begin("train")
        self._admit()
        self._train()

    def _end_step(self) -> None:
        trainer = self.trainer
        episodes = [episode for group in self._batch for episode in group.episodes]
        self.trained += len(episodes)
        self._ages.add(episodes, trainer.version)
        self._batch = []
        trainer.version += 1
        for worker in self.workers:
            worker.advance(self.now)
        spent = [worker.waiting for worker in self.workers]
        rollouts = {
            "busy": sum(each.busy for each in spent),
            "search": sum(each.search for each in spent),
            "weights": sum(each.weights for each in spent),
        }
        self._snapshots[trainer.version] = Snapshot(self.now, dict(trainer.seconds), rollouts)

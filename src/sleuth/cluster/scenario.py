"""What the simulation of a cluster simulates: the settings of a run, and where its parts are placed."""

from dataclasses import dataclass
from typing import Literal

from sleuth.config.algorithm import GROUPED
from sleuth.config.retrieval import SERVICE_SETTINGS, backend_of
from sleuth.config.tree import Config
from sleuth.engines.build import Lockstep
from sleuth.errors import ConfigError

Mode = Literal["sync", "ahead", "async"]
STALENESS: dict[Mode, int] = {"sync": 0, "ahead": 1}  # what the mode itself decides
DEFAULT_STALENESS = 2  # of async


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Limits of a rollout worker: sequences decoded, episodes in flight and searches at the same time."""

    slots: int
    concurrency: int
    searches: int | None
    lockstep: bool
    keep_cache: bool


@dataclass(frozen=True, slots=True)
class Scenario:
    """What to simulate; without `rollouts`, every trainer process is also a rollout worker.

    With `drops_flat_groups`, groups whose rewards are all equal are not trained on.
    """

    questions: int
    samples: int
    updates: int
    mode: Mode
    staleness: int
    trainers: int
    rollouts: int | None
    limits: WorkerLimits
    drops_flat_groups: bool
    steps: int = 12
    seed: int = 0

    @property
    def warmup(self) -> int:
        """Steps before the measured ones, in which the pipeline fills."""
        return self.staleness + 1

    @property
    def workers(self) -> int:
        return self.rollouts or self.trainers

    @property
    def gpus(self) -> int:
        return self.trainers + (self.rollouts or 0)


def describe_scenario(
    config: Config,
    device: str,
    *,
    trainers: int = 1,
    rollouts: int | None = None,
    mode: Mode | None = None,
    staleness: int | None = None,
) -> Scenario:
    """Translate the settings of a run on a type of device (cpu, cuda) with this placement."""
    train, algorithm = config.train, config.algorithm
    mode, staleness = choose_mode(mode or train.mode, staleness)
    service = config.retrieval.service
    has_service = "concurrency" in SERVICE_SETTINGS[backend_of(config.retrieval.index)]
    return Scenario(
        questions=train.questions,
        samples=train.samples,
        updates=train.updates,
        mode=mode,
        staleness=staleness,
        trainers=trainers,
        rollouts=rollouts,
        limits=WorkerLimits(
            slots=config.engine.slots,
            concurrency=config.concurrency,
            searches=service.concurrency if has_service else None,
            lockstep=Lockstep.resolve(config, device).enabled,
            keep_cache=config.engine.stale_cache == "keep",
        ),
        drops_flat_groups=algorithm.advantage in GROUPED and not algorithm.trains_without_advantage,
    )


def choose_mode(mode: Mode, staleness: int | None) -> tuple[Mode, int]:
    """Return mode and staleness; raise ConfigError if they contradict each other."""
    fixed = STALENESS.get(mode)
    if fixed is None:
        found = DEFAULT_STALENESS if staleness is None else staleness
        if found < 1:
            raise ConfigError(f"--staleness {found} with mode async; expected at least 1, or use --mode sync")
        return mode, found
    if staleness not in (None, fixed):
        raise ConfigError(
            f"--staleness {staleness} contradicts mode {mode}, whose staleness is {fixed}; add --mode async"
        )
    return mode, fixed

"""Small policies, trajectories made by hand, and whole runs small enough to train in a second."""

import json
import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sleuth.agent.episode import Agent
from sleuth.agent.tags import Tags
from sleuth.agent.tools import Toolbox
from sleuth.config.tree import Config
from sleuth.engines.paged.engine import PagedEngine
from sleuth.model.policy import Policy
from sleuth.records import Group, Question, Score, Segment, StopReason, Trajectory
from sleuth.retrieval import index
from sleuth.retrieval.retriever import Retriever
from sleuth.reward.rubric import Rubric
from sleuth.runs.run import Run
from sleuth.train.checkpoint import Saver
from sleuth.train.curriculum import Curriculum
from sleuth.train.data import QuestionStream
from sleuth.train.models import Critic
from sleuth.train.observer import SilentObserver
from sleuth.train.optimiser import Optimiser
from sleuth.train.parts import Parts
from sleuth.train.publish import CopiedWeights, SharedWeights
from sleuth.train.rollout import RolloutSampler
from sleuth.train.step import Learner
from sleuth.train.trackers import Trackers

QUESTIONS = [Question(f"q{n}", f"Who wrote book {n}?", ("Ada",), "library", hops=1 + n % 2) for n in range(5)]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tensors as small as these are slower on more."""
    torch.set_num_threads(1)


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    """Makes a trajectory of given tokens; every logprob is -1 unless told."""

    def make(
        ids: Sequence[int] = (5, 6, 7),
        sampled: Sequence[bool] = (False, True, True),
        logprobs: Sequence[float] | None = None,
        *,
        group: int = 0,
        stop: StopReason = StopReason.ANSWERED,
    ) -> Trajectory:
        known = (-1.0,) * sum(sampled) if logprobs is None else tuple(logprobs)
        return Trajectory(
            QUESTIONS[group], group, 0, 1, (Segment(tuple(ids), tuple(sampled), known, (0,) * len(known)),), (), stop
        )

    return make


@pytest.fixture
def groups(trajectory: Callable[..., Trajectory]) -> Callable[..., list[Group]]:
    """Makes groups with these rewards: several turns each, lengths and old logprobs drawn by seed."""

    def make(rewards: Sequence[Sequence[float]], seed: int = 0) -> list[Group]:
        dice = random.Random(seed)

        def drawn(group: int) -> Trajectory:
            runs = [dice.randrange(low, 7) for low in (2, 1, 1, 1)]
            sampled = [bool(place % 2) for place, length in enumerate(runs) for _ in range(length)]
            ids = [dice.randrange(60) for _ in sampled]
            return trajectory(ids, sampled, [dice.uniform(-5.5, -2.5) for each in sampled if each], group=group)

        return [
            Group(QUESTIONS[number], tuple(drawn(number) for _ in paid), tuple(Score(each, {}) for each in paid))
            for number, paid in enumerate(rewards)
        ]

    return make


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    """A search engine over three passages."""
    folder = tmp_path_factory.mktemp("library")
    contents = ['"Ada"\nAda wrote book 1.', '"Oslo"\nOslo is a city.', '"Lisbon"\nLisbon lies by the sea.']
    lines = (json.dumps({"id": f"p{n}", "contents": text}) + "\n" for n, text in enumerate(contents))
    (folder / "corpus.jsonl").write_text("".join(lines))
    index.build(folder / "corpus.jsonl", folder / "index")
    return index.load(folder / "index")


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A reward of the user's own, by which the samples of a question almost always differ."""
    code = "def variety(question, trajectory):\n    return len(set(trajectory.ids)) / len(trajectory.ids)\n"
    (tmp_path / "judge_of_variety.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return "import:judge_of_variety.variety"


@pytest.fixture
def parts(policy: Callable[..., Policy], library: Retriever) -> Callable[..., Parts]:
    """Makes the parts of a small run in a folder; `learning` is its policy, `settings` are tables of its config.

    With `apart`, what the engine generates by are other weights than the policy's: each differs by as much as that.
    """

    def make(
        folder: Path,
        learning: Policy | None = None,
        retriever: Retriever | None = None,
        apart: float = 0.0,
        **settings: Any,
    ) -> Parts:
        config = _config(settings)
        learned = learning or policy()
        together = config.train.mode == "sync" and not apart
        model = learned.model if together else deepcopy(learned.model)
        lockstep = not config.train.is_streaming
        engine = PagedEngine(model, learned.tokens, slots=4, context=config.agent.context_tokens + 1, lockstep=lockstep)
        train = config.train
        optimiser = Optimiser(learned.parameters(), learning_rate=train.learning_rate, weight_decay=train.weight_decay)
        reference = policy() if config.algorithm.kl.place != "none" else None
        critic = _critic(policy, folder, config) if config.algorithm.advantage == "gae" else None
        context = config.agent.context_tokens
        run = Run.open(folder) if folder.exists() else Run.create(folder, {"config": {}})
        agent = Agent(engine, learned.tokens, Tags(), Toolbox(retriever or library, 1), config.agent)
        curriculum = Curriculum(folder, QUESTIONS, config.train) if config.train.curriculum != "none" else None
        stream = QuestionStream(QUESTIONS, config.train.seed, shuffle=True, curriculum=curriculum)
        return Parts(
            config=config,
            run=run,
            learner=Learner(learned, optimiser, config.algorithm, config.train, context, reference, critic),
            engine=engine,
            publisher=SharedWeights(engine) if together else CopiedWeights(engine, lambda: _beside(learned, apart)),
            sampler=RolloutSampler(agent, Rubric(config.reward), stream, config),
            held_out=QUESTIONS[:3],
            saver=Saver(run, config.train.keep, always=(0,)),
            trackers=Trackers([], SilentObserver()),
        )

    return make


def _critic(policy: Callable[..., Policy], folder: Path, config: Config) -> Critic:
    begun = folder.with_name("critic")
    policy(2).save(begun)
    return Critic.load(begun, torch.device("cpu"), torch.float32, config.algorithm.critic, config.train)


def _beside(policy: Policy, apart: float) -> dict[str, Tensor]:
    """The weights of a policy, each moved up or down by as much as told."""
    dice = torch.Generator().manual_seed(0)
    weights = policy.model.state_dict()
    return {name: each + apart * torch.randn(each.shape, generator=dice).sign() for name, each in weights.items()}


def _config(settings: dict[str, Any]) -> Config:
    tables: dict[str, dict[str, Any]] = {
        "world": {},
        "agent": {"prompt": "brief", "searches": 1, "turn_tokens": 6, "observation_tokens": 30, "context_tokens": 90},
        "engine": {"slots": 4},
        "train": {"steps": 3, "questions": 2, "samples": 3, "learning_rate": 1e-3, "save_every": 2},
    }
    return Config.model_validate(tables | {name: tables.get(name, {}) | table for name, table in settings.items()})

"""The same work done by one process and by two: `python two_ranks.py FOLDER` writes what each of them found.

The folder holds a model and recorded groups. Loading the libraries takes seconds, so all three processes are forked
from one that has.
"""

import asyncio
import os
import pickle
import random
import socket
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sleuth.agent.episode import Agent
from sleuth.agent.tags import Tags
from sleuth.agent.tools import Toolbox
from sleuth.config.tree import Config
from sleuth.engines.paged.engine import PagedEngine
from sleuth.errors import TrainingStopped
from sleuth.model.policy import HostBuffers
from sleuth.records import Group, Question, Trajectory
from sleuth.retrieval.retriever import NullRetriever
from sleuth.reward.rubric import Rubric
from sleuth.runs.run import Run
from sleuth.train import checkpoint
from sleuth.train.checkpoint import Progress, Saver
from sleuth.train.credit import RewardBatch
from sleuth.train.data import QuestionStream
from sleuth.train.experience import build_experiences, experience_rows
from sleuth.train.publish import CopiedWeights, SharedWeights, engine_policy
from sleuth.train.ranks import Ranks, describe_disconnect, join_ranks
from sleuth.train.rollout import RolloutSampler
from sleuth.train.sharding import rank_packs
from sleuth.train.step import Learner, StepRates

Found = dict[str, Any]

CPU = torch.device("cpu")
PACK_TOKENS = 32
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "gspo": {"loss": "gspo", "normalise": "sequence"},
    "critic": {"advantage": "gae", "critic": {"learning_rate": 1e-3}},
    "kl in the loss": {"kl": {"place": "loss", "coefficient": 0.5}, "entropy": 0.01},
    "corrected": {"old": "recompute", "correction": {"level": "token"}},
    "likelihood": {"likelihood": {"penalty": "llds", "level": "trajectory", "threshold": 0.99}},
    "taught in the loss": {"teacher": {"policy": "teacher", "place": "loss", "reward_below": 0.3, "coefficient": 0.5}},
    "taught in the reward": {"teacher": {"policy": "teacher", "reward_below": 0.3, "coefficient": 0.5}},
}


def learner(folder: Path, ranks: Ranks, algorithm: dict[str, Any], **model: Any) -> Learner:
    if "teacher" in algorithm:
        algorithm = algorithm | {"teacher": algorithm["teacher"] | {"policy": str(folder / "teacher")}}
    train = {"questions": 2, "updates": 2, "pack_tokens": PACK_TOKENS, "learning_rate": 1e-4, "recompute": 0.5}
    tables = {"world": {}, "agent": {"context_tokens": 90}, "algorithm": algorithm, "train": train}
    return Learner.build(Config.model_validate({**tables, "model": {"policy": str(folder / "model"), **model}}), ranks)


def learn(made: Learner, groups: list[Group], times: int = 2) -> list[dict[str, float]]:
    pace = StepRates(made.train.learning_rate, 0.5, made.algorithm.critic.learning_rate)
    return [made.learn(groups, pace, lambda _: True, recompute=False) for _ in range(times)]


def weights(made: Learner) -> dict[str, Tensor]:
    found = {name: each.clone() for name, each in made.policy.weights(HostBuffers()).items()}
    if made.critic is not None:
        found |= {name: whole(each).clone() for name, each in made.critic.optimiser.state(whole=True).items()}
    return found


def whole(tensor: Tensor) -> Tensor:
    gather: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def learned(folder: Path, ranks: Ranks, groups: list[Group]) -> Found:
    """Metrics and weights of two steps by each algorithm."""
    found = {}
    for name, algorithm in ALGORITHMS.items():
        made = learner(folder, ranks, algorithm)
        found[name] = (learn(made, groups), weights(made))
    adapted = learner(folder, ranks, ALGORITHMS["kl in the loss"], lora={"rank": 2, "alpha": 4})
    found["adapter"] = (learn(adapted, groups), weights(adapted))
    return found


def idle(folder: Path, ranks: Ranks, groups: list[Group]) -> list[bool]:
    """Which of this rank's packs of the two mini-batches are idle."""
    rows = experience_rows(build_experiences(RewardBatch.of(groups).trajectories, 1.0))
    return [
        not packed.rows
        for batch in (rows[: len(rows) // 2], rows[len(rows) // 2 :])
        for packed in rank_packs(batch, PACK_TOKENS, CPU, ranks)
    ]


def gathered(folder: Path, ranks: Ranks, groups: list[Group]) -> Found:
    """What two threads of each rank gather at the same time."""
    aside = ranks.for_thread()
    with ThreadPoolExecutor(1) as thread:
        theirs = thread.submit(lambda: [aside.gather([("aside", ranks.rank, turn)], "aside") for turn in range(50)])
        mine = [ranks.gather([("here", ranks.rank, turn)] * (ranks.rank + 1), "here") for turn in range(50)]
    ranks.barrier("both threads")
    return {"aside": theirs.result(), "here": mine}


def published(folder: Path, ranks: Ranks, groups: list[Group]) -> bool:
    """Whether an engine of its own has the weights of a policy that has learned."""
    made = learner(folder, ranks, {})
    config = Config.model_validate(
        {
            "world": {},
            "model": {"policy": str(folder / "model")},
            "algorithm": {"correction": {"level": "token"}},
            "train": {"questions": 2, "mode": "ahead"},
        }
    )
    copy = engine_policy(config, made)
    learn(made, groups)
    engine = PagedEngine(copy.model, copy.tokens, slots=2, context=90)
    CopiedWeights(engine, lambda: dict(made.policy.parameters())).publish(1)
    expected = made.policy.weights(HostBuffers())
    return all(torch.equal(each, expected[name]) for name, each in copy.model.state_dict().items())


def resumed(folder: Path, ranks: Ranks, groups: list[Group]) -> Found:
    """The weights of a run that was not interrupted, and of one that goes on from what others saved, if they did."""
    made = learner(folder, ranks, ALGORITHMS["critic"])
    learn(made, groups, 1)
    mine, theirs = ("one", "two") if ranks.world == 1 else ("two", "one")
    assert made.critic is not None
    with Saver(Run(folder / mine), 1, ranks) as saver:
        saver.save(made.policy, made.optimiser, Progress(1), made.critic.optimiser)
    learn(made, groups, 1)
    found: Found = {"whole": weights(made)}
    ranks.barrier("both checkpoints")
    left = Run(folder / theirs).checkpoint(1)
    if left.exists():
        again = learner(folder, ranks, ALGORITHMS["critic"])
        assert again.critic is not None
        checkpoint.restore(left, again.policy, again.optimiser, rank=ranks.rank, critic=again.critic.optimiser)
        learn(again, groups, 1)
        found["resumed"] = weights(again)
    return found


def asked(folder: Path, ranks: Ranks, groups: list[Group]) -> Found:
    """The episodes of a step and of an evaluation by a random reward, and how many of them this process scored."""
    made = learner(folder, ranks, {})
    agent_settings = {"prompt": "brief", "searches": 1, "turn_tokens": 6, "context_tokens": 90}
    config = Config.model_validate(
        {
            "world": {},
            "model": {"policy": str(folder / "model")},
            "agent": agent_settings,
            "reward": {"answer": "import:two_ranks.chance"},
            "train": {"questions": 4, "samples": 3, "resample": 2},
        }
    )
    copy = engine_policy(config, made)
    engine = PagedEngine(copy.model, copy.tokens, slots=4, context=91, lockstep=True)
    publisher = (
        SharedWeights(engine) if copy is made.policy else CopiedWeights(engine, lambda: dict(made.policy.parameters()))
    )
    publisher.publish(0)
    agent = Agent(engine, copy.tokens, Tags(), Toolbox(NullRetriever(), 1), config.agent)
    questions = [Question(f"q{n}", f"Who wrote book {n}?", ("Ada",), "library") for n in range(12)]
    sampler = RolloutSampler(agent, Rubric(config.reward), QuestionStream(questions, 0, shuffle=False), config, ranks)
    SCORED.clear()
    batch = asyncio.run(sampler.collect(0, 0))
    return {
        "scores": [(each.group, each.sample, score and score.total) for each, score in batch.scored()],
        "kept": [each.question.id for each in batch.kept],
        "mine": len(SCORED),
        "reward_seconds": batch.cost["time/reward"],
    }


SCORED: list[str] = []


def chance(question: Question, trajectory: Trajectory) -> float:
    """A reward that no two processes agree on."""
    SCORED.append(question.id)
    return float(random.SystemRandom().random() < 0.3)


def apart(folder: Path, ranks: Ranks, groups: list[Group]) -> list[str]:
    """What is said where the processes do different things: another operation, other rows."""
    rows = experience_rows(build_experiences(RewardBatch.of(groups).trajectories, 1.0))[: 3 + ranks.rank]
    said = []
    for each in (lambda: ranks.gather([1], f"place {ranks.rank}"), lambda: list(rank_packs(rows, 32, CPU, ranks))):
        try:
            each()
            said.append("")
        except TrainingStopped as stopped:
            said.append(str(stopped))
    return said


WORK: dict[str, Callable[[Path, Ranks, list[Group]], Any]] = {
    "learned": learned, "idle": idle, "gathered": gathered, "published": published, "resumed": resumed,
    "asked": asked, "apart": apart,
}  # fmt: skip


def work(folder: Path, name: str, only: str | None = None) -> None:
    torch.set_num_threads(1)
    ranks = join_ranks()
    groups = pickle.loads((folder / "groups.pickle").read_bytes())  # noqa: S301  of the test's own
    found = {part: each(folder, ranks, groups) for part, each in WORK.items() if only in (None, part)}
    torch.save(found, folder / f"{name}.pt")
    ranks.close()


def forked(task: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        task()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def ended(children: list[int]) -> None:
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit(1)


def ranked(folder: Path, rank: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    os.environ["MASTER_ADDR"] = "localhost"
    work(folder, f"rank-{rank}")


def deserted(folder: Path, rank: int, port: int) -> None:
    """What the first process says when the second has left without a word."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    os.environ["MASTER_ADDR"] = "localhost"
    ranks = join_ranks()
    if rank == 1:
        os._exit(0)
    try:
        ranks.barrier("the next step")
    except TrainingStopped as stopped:
        torch.save(str(stopped), folder / "deserted.pt")
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        torch.save(describe_disconnect(error), folder / "broken.pt")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port: int = free.getsockname()[1]
    return port


def main(folder: Path) -> None:
    port = free_port()
    ended([forked(lambda: work(folder, "alone"))])
    ended([forked(lambda rank=rank: ranked(folder, rank, port)) for rank in range(2)])  # type: ignore[misc]
    ended([forked(lambda: work(folder, "after", "resumed"))])
    port = free_port()
    ended([forked(lambda rank=rank: deserted(folder, rank, port)) for rank in range(2)])  # type: ignore[misc]


if __name__ == "__main__":
    # The reward is imported by this name.
    sys.modules["two_ranks"] = sys.modules["__main__"]
    main(Path(sys.argv[1]))

"""Evaluation on held-out questions before, during and after training, and the quickstart's ceiling.

The ceiling is the accuracy of the quickstart policy before its training on low-quality demonstrations.
"""

import asyncio
from dataclasses import asdict, dataclass
from itertools import chain, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sleuth.agent.loading import SEARCHES, build_agent
from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.corpus import questions
from sleuth.corpus.questions import CORPUS, TEST
from sleuth.engines.build import embed_policy
from sleuth.evaluate.results import Evaluation
from sleuth.evaluate.runner import evaluate
from sleuth.model.policy import Policy
from sleuth.retrieval import index
from sleuth.reward.rubric import Rubric
from sleuth.runs.json_files import read_json
from sleuth.synthesis.world.world import World, write_world
from sleuth.train.guards import check_evaluation
from sleuth.train.observer import RunObserver
from sleuth.train.parts import Parts
from sleuth.train.ranks import cancel_together
from sleuth.train.rollout import RolloutSchedule


@dataclass(frozen=True, slots=True)
class HeldOutResults:
    """Evaluations of the held-out questions with greedy decoding and with sampling."""

    greedy: Evaluation
    sampled: Evaluation


def evaluate_twice(
    parts: Parts, rollouts: RolloutSchedule, observer: RunObserver, step: int, stage: str
) -> HeldOutResults:
    """Evaluate greedily and with sampling; clears the engine's cache before and after."""
    observer.begin(stage, 2 * len(parts.held_out))
    parts.publisher.publish(step)
    greedy, sampled = (rollouts.run(evaluate_held_out(parts, value, step, observer)) for value in (0.0, 1.0))
    parts.publisher.publish(step)
    return HeldOutResults(greedy, sampled)


async def evaluate_held_out(
    parts: Parts, temperature: float, step: int, observer: RunObserver | None = None
) -> Evaluation:
    """Evaluate with the engine's current weights; each rank evaluates its share of the questions."""
    ranks = parts.ranks
    work = evaluate(
        parts.agent,
        parts.held_out,
        parts.sampler.rubric,
        temperature=temperature,
        step=step,
        concurrent=parts.concurrency or parts.config.concurrency,
        positions=range(ranks.rank, len(parts.held_out), ranks.world),
        on_result=None if observer is None else lambda _: observer.advance(),
    )
    # An evaluation between two steps is not cancelled: its metrics belong to a step that is saved afterwards.
    mine = await (work if observer is None else cancel_together(work, ranks))
    # In a thread: rollouts of this rank go on while it waits for the others.
    gathered = await asyncio.to_thread(ranks.gather, mine.results, f"the held-out questions at step {step}")
    # Rank r takes questions r, r + world, ..., so interleaving the results of the ranks restores the order.
    results = chain.from_iterable(zip_longest(*gathered))
    evaluation = Evaluation(tuple(result for result in results if result is not None))
    check_evaluation(evaluation.trajectories, parts.config.guards)
    return evaluation


CEILING = "ceiling.json"
QUICKSTART = "quickstart"
WITHOUT_EFFECT = {"device", "cache", "record", "service"}  # retrieval settings that do not change the hits


def measure_ceiling(policy: Policy, name: str = QUICKSTART) -> Evaluation:
    """Evaluate a policy greedily on the held-out questions of a quickstart's recipe."""
    config = recipe.load(name)
    assert config.world is not None  # noqa: S101  the quickstart generates its world
    with TemporaryDirectory() as name:
        scratch, world = Path(name), Path(name) / "world"
        encyclopedia = World(config.world.passages, config.world.seed)
        write_world(encyclopedia, world, 1, config.evaluate.questions, mixture=config.world.mixture)
        index.build(world / CORPUS, scratch / "index", index.plan_index(config.retrieval))
        agent = build_agent(config, embed_policy(config, policy), policy.tokens, scratch / "index", scratch / SEARCHES)
        test, rubric = questions.load(world / TEST), Rubric(config.reward)
        return asyncio.run(evaluate(agent, test, rubric, concurrent=config.concurrency))


def load_ceiling(policy: Path, config: Config) -> dict[str, Any] | None:
    """Return a policy's saved ceiling if it was measured on the run's questions and settings; otherwise None."""
    if not (policy / CEILING).exists():
        return None
    saved = read_json(policy / CEILING)
    # Settings missing from the file, such as newer ones, had the values of the recipe.
    measured = _ceiling_settings(recipe.load(saved.get("recipe", QUICKSTART)))
    for name, value in saved["settings"].items():
        measured[name] = {**measured[name], **value} if isinstance(value, dict) else value
    return saved if measured == _ceiling_settings(config) else None


def _ceiling_settings(config: Config) -> dict[str, Any]:
    """Return the settings that a ceiling depends on."""
    return {
        "world": config.world and config.world.model_dump(mode="json", exclude={"questions"}),
        "retrieval": config.retrieval.model_dump(mode="json", exclude=WITHOUT_EFFECT),
        "agent": config.agent.model_dump(mode="json", exclude={"concurrency"}),
        "questions": config.evaluate.questions,
    }


def ceiling_json(found: Evaluation, name: str = QUICKSTART) -> dict[str, Any]:
    """Return the content of ceiling.json, measured with the recipe `name`."""
    count = len(found.results)
    return {
        "recipe": name,
        "settings": _ceiling_settings(recipe.load(name)),
        "what": f"policy trained on expert demonstrations only, greedy, on {count} held-out questions of {name}",
        "em": asdict(found.em),
        "by_hops": {kind: asdict(part.em) for kind, part in found.by_kind().items()},
    }

"""The expert's ceiling: the quickstart policy's accuracy before it was trained on poor demonstrations."""

import asyncio
from dataclasses import asdict
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

FILE = "ceiling.json"
RECIPE = "quickstart"
WITHOUT_EFFECT = {"device", "cache", "record", "service"}  # retrieval settings that do not change the hits


def measure(policy: Policy) -> Evaluation:
    """Greedy evaluation on the held-out questions of the quickstart."""
    config = recipe.load(RECIPE)
    with TemporaryDirectory() as scratch:
        return asyncio.run(_measure(policy, config, Path(scratch)))


async def _measure(policy: Policy, config: Config, scratch: Path) -> Evaluation:
    assert config.world is not None  # noqa: S101  the quickstart generates its world
    world = scratch / "world"
    write_world(World(config.world.passages, config.world.seed), world, 1, config.evaluate.questions)
    index.build(world / CORPUS, scratch / "index", index.plan_index(config.retrieval))
    agent = build_agent(config, embed_policy(config, policy), policy.tokens, scratch / "index", scratch / SEARCHES)
    return await evaluate(agent, questions.load(world / TEST), Rubric(config.reward), concurrent=config.concurrency)


def load(policy: Path, config: Config) -> dict[str, Any] | None:
    """The ceiling saved with a policy, if the run evaluates on the same questions with the same settings."""
    if not (policy / FILE).exists():
        return None
    saved = read_json(policy / FILE)
    # Settings that the file does not name, such as newer ones, had the values of the recipe.
    measured = _settings(recipe.load(RECIPE))
    for name, value in saved["settings"].items():
        measured[name] = {**measured[name], **value} if isinstance(value, dict) else value
    return saved if measured == _settings(config) else None


def _settings(config: Config) -> dict[str, Any]:
    """The settings that a ceiling depends on."""
    return {
        "world": config.world and {"passages": config.world.passages, "seed": config.world.seed},
        "retrieval": config.retrieval.model_dump(mode="json", exclude=WITHOUT_EFFECT),
        "agent": config.agent.model_dump(mode="json", exclude={"concurrency"}),
        "questions": config.evaluate.questions,
    }


def as_json(found: Evaluation) -> dict[str, Any]:
    """The content of ceiling.json."""
    count = len(found.results)
    return {
        "settings": _settings(recipe.load(RECIPE)),
        "what": f"policy trained on expert demonstrations only, greedy, on {count} held-out questions of {RECIPE}",
        "em": asdict(found.em),
        "by_hops": {kind: asdict(part.em) for kind, part in found.by_kind().items()},
    }

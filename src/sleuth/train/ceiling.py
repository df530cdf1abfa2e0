"""The expert's ceiling: what the quickstart's policy could do before it saw poor demonstrations."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.corpus import questions
from sleuth.evaluate.results import Evaluation
from sleuth.evaluate.runner import evaluate
from sleuth.model.policy import Policy
from sleuth.retrieval import index
from sleuth.reward.rubric import Rubric
from sleuth.runs.json_files import read_json
from sleuth.synthesis.world.world import CORPUS, TEST, World, write_world
from sleuth.train.assemble import SEARCHES, agent_of, index_plan
from sleuth.train.engines import embedded

FILE = "ceiling.json"
RECIPE = "quickstart"
# Settings of retrieval that change how hits are found, and not which.
WITHOUT_EFFECT = {"device", "cache", "record", "service"}


def measure(policy: Policy) -> Evaluation:
    """The policy asked, greedily, the held-out questions of the quickstart."""
    config = recipe.load(RECIPE)
    with TemporaryDirectory() as scratch:
        return asyncio.run(_measure(policy, config, Path(scratch)))


async def _measure(policy: Policy, config: Config, scratch: Path) -> Evaluation:
    assert config.world is not None  # noqa: S101  the quickstart generates its world
    world = World(config.world.passages, config.world.seed)
    write_world(world, scratch / "world", 1, config.evaluate.questions)
    index.build(scratch / "world" / CORPUS, scratch / "index", index_plan(config.retrieval))
    held_out = questions.load(scratch / "world" / TEST)
    agent = agent_of(config, embedded(config, policy), policy.tokens, scratch / "index", scratch / SEARCHES)
    return await evaluate(agent, held_out, Rubric(config.reward), concurrent=config.concurrency)


def known(policy: Path, config: Config) -> dict[str, Any] | None:
    """The ceiling kept with a policy, where a run asks what it was measured on."""
    if not (policy / FILE).exists():
        return None
    kept = read_json(policy / FILE)
    # What a file does not name, such as settings that came later, was as the recipe has it.
    measured = _settings(recipe.load(RECIPE))
    for name, value in kept["settings"].items():
        measured[name] = {**measured[name], **value} if isinstance(value, dict) else value
    return kept if measured == _settings(config) else None


def _settings(config: Config) -> dict[str, Any]:
    """What a ceiling depends on beside the weights."""
    return {
        "world": config.world and {"passages": config.world.passages, "seed": config.world.seed},
        "retrieval": config.retrieval.model_dump(mode="json", exclude=WITHOUT_EFFECT),
        "agent": config.agent.model_dump(mode="json", exclude={"concurrency"}),
        "questions": config.evaluate.questions,
    }


def as_json(found: Evaluation) -> dict[str, Any]:
    """What is shown beside a run that started from this policy."""
    count = len(found.results)
    return {
        "settings": _settings(recipe.load(RECIPE)),
        "what": f"the policy that had read experts only, greedy, on {count} held-out questions of {RECIPE}",
        "em": asdict(found.em),
        "by_hops": {kind: asdict(part.em) for kind, part in found.by_kind().items()},
    }

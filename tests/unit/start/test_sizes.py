"""Settings that `sleuth start` chooses, and the recipe that it writes."""

from pathlib import Path

import pytest

from sleuth.config import recipe
from sleuth.errors import InputError
from sleuth.start.sizes import RECIPE, choose_sizes, write_recipe


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    for name, count in (("train", 30), ("validation", 4), ("test", 5)):
        (tmp_path / "parts" / f"{name}.jsonl").write_text("{}\n" * count)
    return tmp_path


@pytest.mark.parametrize("abstain", [False, True])
def test_the_recipe_can_be_loaded(abstain: bool, parts: Path) -> None:
    sizes = choose_sizes("quickstart", steps=7)
    write_recipe(parts, sizes, abstain=abstain, seed=3)
    config = recipe.load(str(parts / RECIPE))
    assert (config.train.steps, config.train.seed, config.agent.context_tokens) == (7, 3, sizes.context)
    assert config.reward.abstain == (0.0 if abstain else None)
    assert config.evaluate.questions == 4
    assert config.model.policy == str(parts / "cold-start")


def test_short_contexts_get_short_prompts() -> None:
    sizes = choose_sizes("quickstart")
    assert (sizes.k, sizes.prompt, sizes.context) == (1, "brief", 1024)


@pytest.mark.parametrize(("name", "count"), [("train", 3), ("validation", 0), ("test", 0)])
def test_too_few_questions_name_the_teacher(name: str, count: int, parts: Path) -> None:
    (parts / "parts" / f"{name}.jsonl").write_text("{}\n" * count)
    with pytest.raises(InputError, match=rf"{count} {name}.*--teacher"):
        write_recipe(parts, choose_sizes("quickstart"), abstain=False, seed=0)
    assert not (parts / RECIPE).exists()

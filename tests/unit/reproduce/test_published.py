"""The published figures: complete, and consistent with their means."""

from pathlib import Path

import pytest

from sleuth.config import recipe
from sleuth.errors import ConfigError
from sleuth.reproduce.published import PUBLISHED, SETS, Published, find_published, require_published

FIGURES = [each for rows in PUBLISHED.values() for each in rows]
WITHOUT_FIGURES = {
    "search-r1-ppo-llama-3.2-3b", "search-r1-grpo-llama-3.2-3b",
    "verl-grpo-qwen2.5-3b", "slime-grpo-qwen2.5-3b", "rlinf-grpo-qwen2.5-3b",
}  # fmt: skip


def test_every_shipped_recipe_of_a_published_system_has_an_entry() -> None:
    assert set(PUBLISHED) == {name for name in recipe.shipped() if not name.startswith("quickstart")}
    assert {name for name, rows in PUBLISHED.items() if not rows} == WITHOUT_FIGURES


@pytest.mark.parametrize("figures", FIGURES, ids=lambda each: f"{each.model}-{each.mean}")
def test_the_mean_is_that_of_the_sets(figures: Published) -> None:
    if figures.em:
        assert tuple(figures.sets) == SETS
        assert sum(figures.em) / len(SETS) == pytest.approx(figures.mean, abs=0.0006)


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - WITHOUT_FIGURES))
def test_figures_are_found_by_model(name: str) -> None:
    for each in PUBLISHED[name]:
        assert find_published(name, each.model) is each
    assert find_published(name, "path/to/another") is PUBLISHED[name][0]


@pytest.mark.parametrize("name", sorted(name for name in PUBLISHED if name.startswith("search-r1") and PUBLISHED[name]))
def test_the_model_of_a_search_r1_recipe_has_figures_of_its_own(name: str) -> None:
    assert PUBLISHED[name][0].model == recipe.load(name).model.policy


def test_recipes_without_figures() -> None:
    assert find_published("slime-grpo-qwen2.5-3b", "Qwen/Qwen2.5-3B") is None


@pytest.mark.parametrize("name", ["quickstart", "nope"])
def test_other_recipes_are_refused_with_the_list(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*search-r1-grpo-qwen2.5-3b"):
        require_published(name)


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - WITHOUT_FIGURES))
def test_the_means_in_the_docs_are_these(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}`"))
    # The page has no room for the 7B of Agent Lightning.
    shown = [each for each in PUBLISHED[name] if name.startswith("search-r1") or "7B" not in each.model]
    assert [f".{round(1000 * each.mean)}" in row for each in shown] == [True] * len(shown)

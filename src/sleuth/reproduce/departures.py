"""What a reproduction does differently from the published experiment."""

import tomllib
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.evaluate.benchmarks import SUITES
from sleuth.reproduce.published import SETS, SUITE, TRAINING_QUESTIONS, Published
from sleuth.reproduce.stages import OPTION_OF, ReproduceOptions, Stages
from sleuth.runs.json_files import read_json

DIFFERS = "What differs: "


def find_departures(stages: Stages, published: Published | None) -> list[str]:
    """Return a line for each difference that is known before the run: model, data, search, changed settings."""
    options, config = stages.options, stages.config()
    return [*_model(config, published), *_data(options), *_changed_settings(options, config)]


def _model(config: Config, published: Published | None) -> Iterator[str]:
    if published is not None and config.model.policy != published.model:
        yield f"model: {config.model.policy} instead of {published.model}"


def _data(options: ReproduceOptions) -> Iterator[str]:
    if options.train:
        yield f"training questions: {', '.join(options.train)} instead of NQ and HotpotQA"
    if options.test:
        yield f"test questions: {', '.join(options.test)} instead of the suite {SUITE}"
    if options.corpus is not None:
        yield f"search: BM25 over {options.corpus} instead of e5 over wiki-18"
    if options.index is not None:
        yield f"search: {options.index}, which may differ from e5 over wiki-18"


def _changed_settings(options: ReproduceOptions, config: Config) -> Iterator[str]:
    """Compare with the recipe as it is shipped; the model and the data have lines of their own."""
    shipped, ours = _flat(recipe.resolved(recipe.load(options.recipe))), _flat(recipe.resolved(config))
    for key, value in ours.items():
        if value != shipped.get(key) and key not in ("model.policy", *OPTION_OF):
            yield f"{key}: {value} instead of {shipped.get(key)}"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def measured_departures(stages: Stages, results: Mapping[str, Any]) -> list[str]:
    """Return a line for each difference in the number of questions, and for failed questions."""
    sizes = {name: part["questions"] for name, part in results["sets"].items()}
    lines = [
        f"test set {name}: {sizes[name]:,} questions instead of {SUITES[SUITE][name]:,}"
        for name in SETS
        if name in sizes and sizes[name] != SUITES[SUITE][name]
    ]
    if missing := [name for name in SETS if name not in sizes]:
        lines.append(f"not evaluated: {', '.join(missing)}")
    manifest = stages.prepared / "train" / "manifest.json"
    if not stages.options.train and manifest.is_file():
        count = read_json(manifest)["files"]["questions.jsonl"]["rows"]
        if count != TRAINING_QUESTIONS:
            lines.append(f"training questions: {count:,} instead of {TRAINING_QUESTIONS:,}")
    if results["unusable"]:
        lines.append(f"{results['unusable']:,} test questions failed and are left out")
    return lines


def recipe_differences(name: str) -> str:
    """Return how a recipe differs from the published code, from the comment in its file or in that of its base."""
    path = recipe.SHIPPED / f"{name}.toml"
    base = tomllib.loads(path.read_text(encoding="utf-8")).get(recipe.BASE)
    return _paragraph(path) or _paragraph(recipe.SHIPPED / f"{base}.toml")


def _paragraph(path: Path) -> str:
    lines = [line.partition("#")[2].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    first = next((number for number, line in enumerate(lines) if line.startswith(DIFFERS)), len(lines))
    return " ".join(takewhile(bool, lines[first:])).removeprefix(DIFFERS)

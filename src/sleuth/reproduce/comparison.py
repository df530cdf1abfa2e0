"""Our exact match beside the published one, by test set, as JSON and as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sleuth.evaluate.statistics import combine
from sleuth.page.document import ABSENT, interval, markdown_table, read_estimate
from sleuth.pipeline.runner import SECONDS
from sleuth.records import Estimate
from sleuth.reproduce.departures import find_departures, measured_departures, recipe_differences
from sleuth.reproduce.published import SETS, Published, find_published
from sleuth.reproduce.stages import EVALUATION, JSON, MARKDOWN, RUN, Stages
from sleuth.runs.atomic import atomic_write
from sleuth.runs.json_files import encode_json, read_json

VERSION = 1
HEADER = ("Set", "Questions", "Our EM [95% interval]", "Published EM", "Difference", "Published EM inside our interval")


@dataclass(frozen=True, slots=True)
class Row:
    """A test set, or the mean of several: our exact match and the published one, each None if it is not known."""

    name: str
    questions: int
    ours: Estimate | None
    published: float | None

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or self.published is None else self.ours.value - self.published

    @property
    def is_inside(self) -> bool | None:
        if self.ours is None or self.published is None:
            return None
        # Published figures have three decimals.
        return round(self.ours.low, 3) <= self.published <= round(self.ours.high, 3)

    def as_json(self) -> dict[str, Any]:
        ours = None if self.ours is None else asdict(self.ours)
        figures = {"ours": ours, "published": self.published, "difference": self.difference}
        return {"set": self.name, "questions": self.questions, **figures, "published_inside": self.is_inside}

    def cells(self) -> tuple[str, ...]:
        published = ABSENT if self.published is None else f"{self.published:.3f}"
        difference = ABSENT if self.difference is None else f"{self.difference:+.3f}"
        inside = {None: ABSENT, True: "yes", False: "no"}[self.is_inside]
        return (self.name, f"{self.questions:,}", interval(self.ours), published, difference, inside)


def compare(results: Mapping[str, Any], published: Published | None) -> tuple[list[Row], Row]:
    """Return a row per test set and their mean, from results.json of the evaluation."""
    known = {} if published is None else published.sets
    parts = results["sets"]
    names = [name for name in SETS if name in parts] + [name for name in parts if name not in SETS]
    rows = [
        Row(name, parts[name]["questions"], read_estimate(parts[name].get("em")), known.get(name)) for name in names
    ]
    return rows, _mean(rows, published)


def _mean(rows: Sequence[Row], published: Published | None) -> Row:
    """The mean of our sets, beside the published mean of the same sets if that is known."""
    measured = [row.ours for row in rows if row.ours is not None]
    theirs = None
    if published is not None and {row.name for row in rows} == set(SETS):
        theirs = published.mean
    elif rows and all(row.published is not None for row in rows):
        theirs = sum(row.published or 0.0 for row in rows) / len(rows)
    complete = bool(rows) and len(measured) == len(rows)
    name = "mean" if len(rows) == 1 else f"mean of {len(rows)} sets"
    return Row(name, sum(row.questions for row in rows), combine(measured) if complete else None, theirs)


def write_comparison(stages: Stages) -> None:
    """Write the comparison of a finished evaluation into the output folder, as JSON and as Markdown."""
    config, results = stages.config(), read_json(stages.folder / EVALUATION / "results.json")
    published = find_published(stages.options.recipe, config.model.policy)
    rows, mean = compare(results, published)
    comparison = {
        "version": VERSION,
        "recipe": stages.options.recipe,
        "model": config.model.policy,
        "steps": config.train.steps,
        "published": None
        if published is None
        else {key: getattr(published, key) for key in ("model", "mean", "source")},
        "sets": [row.as_json() for row in rows],
        "mean": mean.as_json(),
        "departures": [*find_departures(stages, published), *measured_departures(stages, results)],
        "recipe_differences": recipe_differences(stages.options.recipe),
        "code": results["stamp"]["code"],
        "run": RUN,
        "evaluation": EVALUATION,
        "seconds": read_json(stages.folder / SECONDS),
    }
    with atomic_write(stages.folder / MARKDOWN) as path:
        path.write_text(markdown(comparison, [*rows, mean]), encoding="utf-8")
    with atomic_write(stages.folder / JSON) as path:
        path.write_bytes(encode_json(comparison))


def markdown(comparison: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The table, and what differs from the published experiment."""
    published, departures = comparison["published"], comparison["departures"]
    source = (
        "The authors published no figures on these sets."
        if published is None
        else f"Published: {published['model']}, {published['source']}."
    )
    lines = [
        f"# Reproduction of {comparison['recipe']}",
        "",
        f"Ours: {comparison['model']}, {comparison['steps']:,} steps, code {comparison['code']}. {source}",
        "",
        *markdown_table(HEADER, (row.cells() for row in rows)),
        "",
        "Different from the published experiment:",
        "",
        *(f"- {line}" for line in departures or ["no known differences"]),
        "",
        f"The recipe itself, compared with the published code: {comparison['recipe_differences']}",
    ]
    return "\n".join(lines) + "\n"


def read_markdown(folder: Path) -> str:
    return (folder / MARKDOWN).read_text(encoding="utf-8")

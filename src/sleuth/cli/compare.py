"""sleuth compare: paired comparison of two evaluations."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sleuth.cli.options import MAX_INT, require_new_file
from sleuth.cli.terminal import print_markdown
from sleuth.errors import ConfigError


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="An evaluation folder, or its results.json.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another evaluation of the same questions.")],
    measure: Annotated[str, typer.Option(help="Measure to compare: em, f1, cover_em, judge, format, tokens...")] = "em",
    common: Annotated[
        bool, typer.Option("--common", help="Compare only the questions that both evaluations have.")
    ] = False,
    show: Annotated[
        int,
        typer.Option(min=0, max=MAX_INT, help="Number of questions to print that were won and lost."),
    ] = 10,
    json_file: Annotated[Path | None, typer.Option("--json", help="New JSON file with all figures.")] = None,
) -> None:
    """Compare B with A: paired differences with 95% intervals, per set and overall, and the changed questions."""
    require_new_file(json_file)
    from sleuth.evaluate import comparison
    from sleuth.evaluate.results import MEASURES, read_results

    if measure not in MEASURES:
        raise ConfigError(f"--measure {measure} is unknown; expected one of {', '.join(MEASURES)}")
    found = comparison.compare(read_results(first), read_results(second), common=common)
    if found.overall(measure) is None:
        raise ConfigError(f"--measure {measure} was not measured in both evaluations; choose another")
    print_markdown(comparison.markdown(found, (_evaluation_name(first), _evaluation_name(second)), measure, show))
    if json_file is not None:
        kept = {"first": str(first), "second": str(second), **comparison.as_json(found, measure)}
        json_file.write_text(json.dumps(kept, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _evaluation_name(path: Path) -> str:
    return (path if path.is_dir() else path.parent).resolve().name

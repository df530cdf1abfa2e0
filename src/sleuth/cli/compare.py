"""sleuth compare: two evaluations of the same questions, question by question."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sleuth.cli.options import MAX_INT, require_new_file
from sleuth.cli.terminal import print_markdown
from sleuth.errors import ConfigError


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="an evaluation: its folder, or the results.json in it")],
    second: Annotated[Path, typer.Argument(metavar="B", help="another one, of the same questions")],
    measure: Annotated[
        str, typer.Option(help="what is compared set by set: em, f1, cover_em, judge, format, tokens...")
    ] = "em",
    common: Annotated[
        bool, typer.Option("--common", help="where the questions differ, compare those that both asked")
    ] = False,
    show: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_INT, help="questions won and lost (of counts: higher and lower) to print, of each so many"
        ),
    ] = 10,
    json_file: Annotated[Path | None, typer.Option("--json", help="a new file for all figures and questions")] = None,
) -> None:
    """Compare B with A: paired differences by set and on the mean with 95% intervals, and which questions changed."""
    require_new_file(json_file)
    from sleuth.evaluate import comparison
    from sleuth.evaluate.results import MEASURES, read_results

    if measure not in MEASURES:
        raise ConfigError(f"--measure {measure} is unknown; expected one of {', '.join(MEASURES)}")
    found = comparison.compare(read_results(first), read_results(second), common=common)
    if found.overall(measure) is None:
        raise ConfigError(f"--measure {measure} was not measured in both evaluations; choose another")
    print_markdown(comparison.markdown(found, (_named(first), _named(second)), measure, show))
    if json_file is not None:
        kept = {"first": str(first), "second": str(second), **comparison.as_json(found, measure)}
        json_file.write_text(json.dumps(kept, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _named(path: Path) -> str:
    """What an evaluation is called: its folder."""
    return (path if path.is_dir() else path.parent).resolve().name

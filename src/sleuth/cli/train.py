"""sleuth train: a run from start to report."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sleuth import recipe
from sleuth.cli.live import Live
from sleuth.config import Config
from sleuth.errors import ConfigError
from sleuth.runs import Run, fresh

if TYPE_CHECKING:
    from sleuth.train.assemble import Parts

RUNS = Path("runs")
TABLE = 104  # columns the closing table needs

Estimates = Mapping[str, Mapping[str, float]]


def train(
    name: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="a shipped recipe by name, or a TOML file")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a setting, e.g. train.steps=10")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="the run folder, which must not exist; default runs/NAME-N")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="continue the run in this folder from its newest checkpoint")
    ] = None,
) -> None:
    """Train a policy by a recipe, or continue a run that was interrupted."""
    started = time.monotonic()
    found: Mapping[str, Any]
    if resume is not None and (name is not None or settings or out is not None):
        raise ConfigError("--resume continues a run as it was begun; leave out the recipe, --set and --out")
    begun = Run.open(resume) if resume is not None else _config(name, settings)
    console = Console(stderr=True, markup=False, highlight=False)
    done = begun.summary() if isinstance(begun, Run) else None
    if isinstance(begun, Run) and done is not None:
        console.print(f"{begun.path} is finished, nothing is left to do", soft_wrap=True)
        found, folder = done, begun.path
    else:
        found, folder = _run(begun, out, console, started)
    closing_table(console, found)
    console.print(f"run folder   {folder}\nreport       {folder / 'report.html'}", soft_wrap=True)
    console.print(f'ask it       sleuth ask {folder} "..."', soft_wrap=True)


def _config(name: str | None, settings: list[str] | None) -> Config:
    if name is None:
        raise ConfigError(f"no recipe given; name one ({', '.join(recipe.shipped())}), a TOML file, or --resume RUN")
    return recipe.load(name, settings or ())


def _run(begun: Run | Config, out: Path | None, console: Console, started: float) -> tuple[Mapping[str, Any], Path]:
    """Continues a run, or makes the one a config asks for."""
    from sleuth.cli.quiet import quiet
    from sleuth.train.assemble import proceed, start
    from sleuth.train.loop import train as train_parts
    from sleuth.train.summary import write

    quiet()
    with Live(console) as live:
        parts: Parts
        match begun:
            case Run():
                parts = proceed(begun, live)
            case Config():
                parts = start(begun, out or fresh(RUNS, begun.name), live)
        try:
            outcome = train_parts(parts, live, started)
        except KeyboardInterrupt:
            console.print(f"interrupted; continue with: sleuth train --resume {parts.run.path}", soft_wrap=True)
            raise
    return write(parts, outcome), parts.run.path


def closing_table(console: Console, found: Mapping[str, Any]) -> None:
    """Before and after, kind by kind, with the expert's ceiling where it is known."""
    ceiling = found["ceiling"]
    table = Table(title="Held-out questions, exact match [95% interval]", title_justify="left", box=SIMPLE_HEAD)
    for column in ("kind", "before", "after", "gain", *(["expert's ceiling"] if ceiling else []), "searches"):
        table.add_column(column, no_wrap=True)
    tops = ceiling["by_hops"] if ceiling else {}
    for kind, change in found["em_by_hops"].items():
        limit = [_shown(tops.get(kind))] if ceiling else []
        table.add_row(kind, *_cells(change, limit, found["searches_by_hops"][kind]))
    table.add_section()
    overall = {name: found[f"em_{name}"] for name in ("before", "after", "gain")}
    limit = [_shown(ceiling["em"])] if ceiling else []
    table.add_row("all, greedy", *_cells(overall, limit, found["searches_by_hops"]["all"]))
    table.add_row("all, sampled", *(_shown(found[f"em_sampled_{name}"]) for name in ("before", "after")))
    # A narrow terminal wraps its lines rather than losing figures.
    console.width = max(console.width, TABLE)
    console.print(table)
    console.print(f"{found['steps']} steps in {found['seconds']:.0f} s, {found['peak_memory_gib']:.2f} GiB at most")


def _cells(change: Estimates, limit: list[str], searches: Mapping[str, float]) -> list[str]:
    used = f"{searches['before']:.1f} -> {searches['after']:.1f}"
    return [*(_shown(change[name]) for name in ("before", "after", "gain")), *limit, used]


def _shown(estimate: Mapping[str, float] | None) -> str:
    """A mean with its interval; what is not known is left empty."""
    if not estimate:
        return ""
    value, low, high = (f"{estimate[name]:.2f}".replace("0.", ".") for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"

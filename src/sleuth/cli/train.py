"""sleuth train: a run from start to report."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
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
    config, run = _continued(resume, name, settings, out) if resume is not None else _new(name, settings, out)
    console = Console(stderr=True)
    found = _run(config, run, console, started)
    closing_table(console, found)
    console.print(f"run folder   {run.path}\nreport       {run.path / 'report.html'}", soft_wrap=True)
    console.print(f'ask it       sleuth ask {run.path} "..."', soft_wrap=True)


def _new(name: str | None, settings: list[str] | None, out: Path | None) -> tuple[Config, Run]:
    if name is None:
        raise ConfigError(f"no recipe given; name one ({', '.join(recipe.shipped())}), a TOML file, or --resume RUN")
    config = recipe.load(name, settings or ())
    from sleuth.train.assemble import begin

    return config, begin(config, out or fresh(RUNS, config.name))


def _continued(resume: Path, name: str | None, settings: list[str] | None, out: Path | None) -> tuple[Config, Run]:
    if name is not None or settings or out is not None:
        raise ConfigError("--resume continues a run as it was begun; leave out the recipe, --set and --out")
    run = Run.resume(resume)
    return recipe.restore(run.manifest()["config"]), run


def _run(config: Config, run: Run, console: Console, started: float) -> Mapping[str, Any]:
    from sleuth.cli.quiet import quiet
    from sleuth.train.assemble import assemble
    from sleuth.train.loop import train as train_parts
    from sleuth.train.summary import write

    quiet()
    with Live(console) as live:
        parts: Parts = assemble(config, run, live)
        outcome = train_parts(parts, live, started)
    return write(parts, outcome)


def closing_table(console: Console, found: Mapping[str, Any]) -> None:
    """Before and after, kind by kind, with the expert's ceiling where it is known."""
    ceiling = found["ceiling"]
    table = Table(title="Held-out questions, exact match [95% interval]", title_justify="left")
    for column in ("kind", "before", "after", "gain", *(["expert's ceiling"] if ceiling else []), "searches"):
        table.add_column(column)
    tops = ceiling["by_hops"] if ceiling else {}
    for kind, change in found["em_by_hops"].items():
        table.add_row(kind, *_cells(change, found["searches_by_hops"][kind], ceiling and tops.get(kind)))
    table.add_section()
    overall = {name: found[f"em_{name}"] for name in ("before", "after", "gain")}
    table.add_row("all, greedy", *_cells(overall, found["searches_by_hops"]["all"], ceiling and ceiling["em"]))
    table.add_row("all, sampled", *(_shown(found[f"em_sampled_{name}"]) for name in ("before", "after")))
    console.print(table)
    console.print(f"{found['steps']} steps in {found['seconds']:.0f} s, {found['peak_memory_gib']:.2f} GiB at most")


def _cells(change: Estimates, searches: Mapping[str, float], ceiling: Mapping[str, float] | None) -> list[str]:
    tops = [_shown(ceiling)] if ceiling else []
    used = f"{searches['before']:.1f} -> {searches['after']:.1f}"
    return [*(_shown(change[name]) for name in ("before", "after", "gain")), *tops, used]


def _shown(estimate: Mapping[str, float]) -> str:
    return f"{estimate['value']:.2f} \\[{estimate['low']:.2f}, {estimate['high']:.2f}]"

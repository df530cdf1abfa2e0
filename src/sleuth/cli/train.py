"""sleuth train: a run from start to report."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sleuth.cli.launch import launch, rank
from sleuth.cli.options import MAX_PROCESSES
from sleuth.cli.progress import TrainingProgress
from sleuth.cli.terminal import Terminal
from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.errors import ConfigError, InputError, Interrupted
from sleuth.page.document import read_estimate
from sleuth.page.run_report import loss_notes, question_count
from sleuth.runs.interruption import INTERRUPTION
from sleuth.runs.run import Run, next_run_path, step_of

if TYPE_CHECKING:
    from sleuth.train.parts import Parts

RUNS = Path("runs")
TABLE = 122  # columns the closing table needs

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
    nproc: Annotated[int, typer.Option(metavar="N", min=1, max=MAX_PROCESSES, help="Processes, one per GPU.")] = 1,
) -> None:
    """Train a policy by a recipe, or continue a run that was interrupted."""
    started = time.monotonic()
    if resume is not None and (name is not None or out is not None):
        raise ConfigError("--resume continues a run in its own folder; leave out the recipe and --out")
    begun = Run.open(resume) if resume is not None else _config(name, settings)
    console = Terminal(stderr=True, markup=False, highlight=False, quiet=rank() > 0)
    done = begun.summary() if isinstance(begun, Run) and (begun.path / "report.html").is_file() else None
    if isinstance(begun, Run) and done is not None and not settings:
        console.print(f"{begun.path} is finished, nothing is left to do", soft_wrap=True)
        try:
            _end(console, done, begun.path)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            written = begun.path / "summary.json"
            raise InputError(
                f"{written} is not as a run writes it ({error!r}); remove it, and the same command writes it again"
            ) from error
    elif nproc > 1:
        _launch(begun, name, settings or [], out, nproc)
    else:
        _run(begun, settings or [], out, console, started)


def _end(console: Console, found: Mapping[str, Any], folder: Path) -> None:
    """What a person wants to know of a finished run."""
    closing(console, found)
    console.print(f"run folder   {folder}\nreport       {folder / 'report.html'}", soft_wrap=True)
    console.print(f'ask it       sleuth ask {folder} "..."', soft_wrap=True)


def _config(name: str | None, settings: list[str] | None) -> Config:
    if name is None:
        raise ConfigError(f"no recipe given; name one ({', '.join(recipe.shipped())}), a TOML file, or --resume RUN")
    return recipe.load(name, settings or ())


def _launch(begun: Run | Config, name: str | None, settings: list[str], out: Path | None, nproc: int) -> None:
    """The same command in several processes, after what can be found wrong before any of them starts."""
    from sleuth.train.ranks import require_gpus, require_supported

    match begun:
        case Run():
            config, where = recipe.amend(begun.config_and_inputs()[0], settings), ["--resume", str(begun.path)]
        case Config():
            config, where = begun, [str(name), "--out", str(out or next_run_path(RUNS, begun.name))]
    require_supported(config, nproc)
    require_gpus(nproc)
    launch(nproc, ["train", *where, *(word for each in settings for word in ("--set", each))])


def _run(begun: Run | Config, changes: list[str], out: Path | None, console: Console, started: float) -> None:
    """Continues a run, or makes the one a config asks for; of several processes the first tells how it ended."""
    from sleuth.cli.terminal import silence_transformers
    from sleuth.train.assemble import resume_run, start_run
    from sleuth.train.loop import train as train_parts
    from sleuth.train.ranks import join_ranks
    from sleuth.train.summary import write_summary

    silence_transformers()
    ranks = join_ranks()
    parts: Parts
    with TrainingProgress(console) as live, INTERRUPTION.handle_signals():
        chosen = begun.path if isinstance(begun, Run) else out or next_run_path(RUNS, begun.name)
        ((folder,), *_) = ranks.gather([chosen], "the name of the run")
        try:
            match begun:
                case Run():
                    parts = resume_run(begun, live, changes, ranks)
                case Config():
                    parts = start_run(begun, folder, live, ranks)
            outcome = train_parts(parts, live, started)
        except Interrupted:
            _say_interrupted(console, folder)
            raise
    if ranks.rank == 0:
        _end(console, write_summary(parts, outcome), parts.run.path)
    ranks.close()


def _say_interrupted(console: Console, folder: Path) -> None:
    """How to go on; a run that was interrupted before it had a folder has nothing to resume."""
    if (folder / "manifest.json").exists():
        saved = Run(folder).latest()
        reached = "before its first checkpoint" if saved is None else f"after step {step_of(saved)}"
        console.print(f"interrupted {reached}; continue with: sleuth train --resume {folder}", soft_wrap=True)


def closing(console: Console, found: Mapping[str, Any]) -> None:
    """What a run reached, as far as it was asked, and what it took."""
    if "em_gain" in found:
        closing_table(console, found)
    else:
        for when in ("before", "after"):
            if f"em_{when}" in found:
                asked = question_count(None, read_estimate(found[f"em_{when}"]), _asked(found))
                value = _shown(found[f"em_{when}"])
                console.print(f"exact match {when} training, {asked} held-out questions, greedy: {value}")
    for sentence in loss_notes(found):
        console.print(sentence, soft_wrap=True)
    console.print(f"{found['steps']} steps in {found['seconds']:.0f} s, {found['peak_memory_gib']:.2f} GiB at most")


def closing_table(console: Console, found: Mapping[str, Any]) -> None:
    """Before and after, kind by kind, over how many questions, with the expert's ceiling where it is known."""
    ceiling = found["ceiling"]
    table = Table(title="Held-out questions, exact match [95% interval]", title_justify="left", box=SIMPLE_HEAD)
    limits = ["expert's ceiling"] if ceiling else []
    for column in ("kind", "before", "after", "gain", *limits, "searches", "questions"):
        table.add_column(column, no_wrap=True)
    tops = ceiling["by_hops"] if ceiling else {}
    for kind, change in found["em_by_hops"].items():
        limit = [_shown(tops.get(kind))] if ceiling else []
        count = _over(change, change.get("questions"))
        table.add_row(kind, *_cells(change, limit, found["searches_by_hops"][kind]), count)
    table.add_section()
    overall = {name: found[f"em_{name}"] for name in ("before", "after", "gain")}
    limit = [_shown(ceiling["em"])] if ceiling else []
    count = _over(overall, _asked(found))
    table.add_row("all, greedy", *_cells(overall, limit, found["searches_by_hops"]["all"]), count)
    sampled = {name: found[f"em_sampled_{name}"] for name in ("before", "after")}
    empty = ["", *("" for _ in limits), ""]
    table.add_row("all, sampled", *map(_shown, sampled.values()), *empty, _over(sampled, _asked(found)))
    # A narrow terminal wraps its lines rather than losing figures.
    console.width = max(console.width, TABLE)
    console.print(table)


def _asked(found: Mapping[str, Any]) -> int | None:
    """How many held-out questions there are; runs of older versions do not tell."""
    asked: int | None = (found.get("held_out") or {}).get("questions")
    return asked


def _over(change: Mapping[str, Any], asked: int | None) -> str:
    """How many questions a row is over, and of how many where some were lost."""
    return question_count(read_estimate(change["before"]), read_estimate(change["after"]), asked, "->")


def _cells(change: Estimates, limit: list[str], searches: Mapping[str, float]) -> list[str]:
    used = f"{searches['before']:.1f} -> {searches['after']:.1f}"
    return [*(_shown(change[name]) for name in ("before", "after", "gain")), *limit, used]


def _shown(estimate: Mapping[str, float] | None) -> str:
    """A mean with its interval; what is not known is left empty."""
    if not estimate:
        return ""
    value, low, high = (f"{estimate[name]:.2f}".replace("0.", ".") for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"

"""sleuth train: start or resume a training run."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from sleuth.api.progress import TrainingProgress
from sleuth.cli.launch import launch, rank
from sleuth.cli.options import MAX_PROCESSES
from sleuth.cli.terminal import echo, silence_transformers, stderr_console
from sleuth.config import recipe
from sleuth.config.agent import OUTSIDE
from sleuth.config.tree import Config
from sleuth.errors import ConfigError, InputError, Interrupted
from sleuth.page.document import read_estimate
from sleuth.page.run_report import loss_notes, question_count
from sleuth.runs.interruption import INTERRUPTION
from sleuth.runs.run import Run, next_run_path

TABLE_WIDTH = 122


def train(
    name: Annotated[str | None, Argument(metavar="RECIPE", help="A shipped recipe, or a TOML file.")] = None,
    settings: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Change a setting.")] = None,
    out: Annotated[Path | None, Option(help="Run folder; it must not exist. Default: runs/NAME-N.")] = None,
    resume: Annotated[Path | None, Option(help="Run folder to resume from its newest checkpoint.")] = None,
    nproc: Annotated[int, Option(metavar="N", min=1, max=MAX_PROCESSES, help="Processes, one per GPU.")] = 1,
    ray: Annotated[str | None, Option(metavar="ADDRESS", help="Ray cluster: local, auto, or HOST:PORT.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="With --ray: print the placement and stop.")] = False,
) -> None:
    """Train a policy with a recipe, or resume a run."""
    started = time.monotonic()
    if resume is not None and (name is not None or out is not None):
        raise ConfigError("--resume continues a run in its folder; remove the recipe and --out")
    if resume is None and name is None:
        raise ConfigError(f"no recipe given; name one ({', '.join(recipe.shipped())}), a TOML file, or --resume RUN")
    _check_cluster_options(ray, dry_run, nproc)
    begun = Run.open(resume) if resume is not None else recipe.load(str(name), settings or ())
    console = stderr_console(quiet=rank() > 0)
    summary = begun.summary() if isinstance(begun, Run) and (begun.path / "report.html").is_file() else None
    if isinstance(begun, Run) and summary is not None and not settings:
        console.print(f"{begun.path} is already finished", soft_wrap=True)
        try:
            _print_result(console, summary, begun)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{begun.path / 'summary.json'} is damaged ({error!r}); remove it, and the same command writes it again"
            ) from error
    elif ray is not None:
        _run_on_cluster(begun, settings or [], out, console, ray, dry_run)
    elif nproc > 1:
        _launch(begun, name, settings or [], out, nproc)
    else:
        _run(begun, settings or [], out, console, started)


def _check_cluster_options(ray: str | None, dry_run: bool, nproc: int) -> None:
    if ray is not None and nproc > 1:
        raise ConfigError("--nproc has no effect with --ray; set cluster.trainers to the number of trainer ranks")
    if dry_run and ray is None:
        raise ConfigError("--dry-run prints the placement on a cluster; add --ray local, auto or HOST:PORT")


def _run_on_cluster(
    begun: Run | Config, changes: list[str], out: Path | None, console: Console, address: str, dry_run: bool
) -> None:
    """Start or resume a run on a Ray cluster, or print where its actors would be placed."""
    from sleuth.api.trainer import RUNS, describe_interrupted
    from sleuth.cluster.driver import preview_placement, train_on_cluster

    if dry_run:
        config = recipe.amend(begun.config_and_inputs()[0], changes) if isinstance(begun, Run) else begun
        echo("\n".join(preview_placement(config, address)))
        return
    folder = begun.path if isinstance(begun, Run) else out or next_run_path(RUNS, begun.name)
    with TrainingProgress(console) as live, INTERRUPTION.handle_signals():
        try:
            folder, summary = train_on_cluster(begun, folder, live, changes, address)
        except Interrupted:
            if line := describe_interrupted(folder):
                console.print(f"{line}; continue with: sleuth train --resume {folder} --ray {address}", soft_wrap=True)
            raise
    _print_result(console, summary, Run(folder))


def _launch(begun: Run | Config, name: str | None, settings: list[str], out: Path | None, nproc: int) -> None:
    """Run the same command in several processes, after all checks that can run in this process."""
    from sleuth.api.trainer import RUNS
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
    """Start or resume a run in this process; only rank 0 prints the result."""
    from sleuth.api.trainer import RUNS, describe_interrupted, train_in_process

    silence_transformers()
    folder = begun.path if isinstance(begun, Run) else out or next_run_path(RUNS, begun.name)
    with TrainingProgress(console) as live, INTERRUPTION.handle_signals():
        try:
            folder, summary = train_in_process(begun, folder, live, changes, started)
        except Interrupted:
            if line := describe_interrupted(folder):
                console.print(f"{line}; continue with: sleuth train --resume {folder}", soft_wrap=True)
            raise
    if summary is not None:
        _print_result(console, summary, Run(folder))


def _print_result(console: Console, summary: Mapping[str, Any], run: Run) -> None:
    folder, agent = run.path, run.config_and_inputs()[0].get("agent", {})
    print_summary(console, summary)
    console.print(f"run folder   {folder}\nreport       {folder / 'report.html'}", soft_wrap=True)
    if any(agent.get(name) is not None for name in OUTSIDE):
        console.print(f"evaluate it  sleuth evaluate {folder}", soft_wrap=True)
    else:
        console.print(f'ask it       sleuth ask {folder} "..."', soft_wrap=True)


def print_summary(console: Console, summary: Mapping[str, Any]) -> None:
    """Print the evaluations that ran, lost questions, time and memory."""
    if "em_gain" in summary:
        print_table(console, summary)
    else:
        for when in ("before", "after"):
            if f"em_{when}" in summary:
                count = question_count(None, read_estimate(summary[f"em_{when}"]), _held_out(summary))
                value = _format(summary[f"em_{when}"])
                console.print(f"exact match {when} training, {count} held-out questions, greedy: {value}")
    for sentence in loss_notes(summary):
        console.print(sentence, soft_wrap=True)
    console.print(
        f"{summary['steps']} steps in {summary['seconds']:.0f} s, {summary['peak_memory_gib']:.2f} GiB at most"
    )


def print_table(console: Console, summary: Mapping[str, Any]) -> None:
    """Print exact match before and after training per question kind, with the expert's ceiling if known."""
    ceiling = summary["ceiling"]
    table = Table(title="Held-out questions, exact match [95% interval]", title_justify="left", box=SIMPLE_HEAD)
    ceiling_column = ["expert's ceiling"] if ceiling else []
    for column in ("kind", "before", "after", "gain", *ceiling_column, "searches", "questions"):
        table.add_column(column, no_wrap=True)
    for kind, change in summary["em_by_hops"].items():
        limit = [_format(ceiling["by_hops"].get(kind))] if ceiling else []
        count = _count(change, change.get("questions"))
        table.add_row(kind, *_cells(change, limit, summary["searches_by_hops"][kind]), count)
    table.add_section()
    overall = {name: summary[f"em_{name}"] for name in ("before", "after", "gain")}
    limit = [_format(ceiling["em"])] if ceiling else []
    count = _count(overall, _held_out(summary))
    table.add_row("all, greedy", *_cells(overall, limit, summary["searches_by_hops"]["all"]), count)
    sampled = {name: summary[f"em_sampled_{name}"] for name in ("before", "after")}
    empty = ["", *("" for _ in ceiling_column), ""]
    table.add_row("all, sampled", *map(_format, sampled.values()), *empty, _count(sampled, _held_out(summary)))
    # A narrow terminal wraps the lines; rich would cut them.
    console.width = max(console.width, TABLE_WIDTH)
    console.print(table)


def _held_out(summary: Mapping[str, Any]) -> int | None:
    """Return the number of held-out questions; None for runs of older versions."""
    return cast("int | None", (summary.get("held_out") or {}).get("questions"))


def _count(change: Mapping[str, Any], total: int | None) -> str:
    return question_count(read_estimate(change["before"]), read_estimate(change["after"]), total, "->")


def _cells(change: Mapping[str, Any], limit: list[str], searches: Mapping[str, float]) -> list[str]:
    used = f"{searches['before']:.1f} -> {searches['after']:.1f}"
    return [*(_format(change[name]) for name in ("before", "after", "gain")), *limit, used]


def _format(estimate: Mapping[str, float] | None) -> str:
    if not estimate:
        return ""
    value, low, high = (f"{estimate[name]:.2f}".replace("0.", ".") for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"

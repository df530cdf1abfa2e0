"""sleuth evaluate: a run asked every question of a file."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sleuth.cli.live import Live
from sleuth.cli.printed import printed
from sleuth.errors import InputError
from sleuth.runs import Run, replacing


def evaluate(
    run: Annotated[Path, typer.Argument(help="the folder of a run")],
    questions: Annotated[
        Path | None, typer.Option(help="a questions file; default: the held-out questions of the run")
    ] = None,
    before: Annotated[bool, typer.Option("--before", help="the policy as it was before training")] = False,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy")] = 0.0,
    out: Annotated[Path | None, typer.Option(help="write the result as JSON to this file")] = None,
) -> None:
    """Ask every question once and print EM, F1 and searches by kind, with 95% intervals."""
    if out is not None and out.exists():
        raise InputError(f"{out} exists already and is left as it is; choose another file")
    opened = Run.open(run)
    from sleuth.cli.quiet import quiet
    from sleuth.corpus.questions import load
    from sleuth.evaluate import report, suite
    from sleuth.reward.rubric import Rubric
    from sleuth.train import finished
    from sleuth.train.assemble import sources_of

    quiet()
    config = finished.config_of(opened)
    asked = load(questions or sources_of(config, opened).test)
    agent = finished.agent(opened, before)
    with Live(Console(stderr=True)) as live:
        live.begin("asking", len(asked))
        found = asyncio.run(
            suite.evaluate(
                agent,
                asked,
                Rubric(config.reward),
                temperature=temperature,
                concurrent=config.engine.slots,
                done=lambda _: live.advance(),
            )
        )
    text = report.markdown(found, f"{run} on {len(asked)} questions")
    printed(text)
    if out is not None:
        with replacing(out) as path:
            path.write_text(report.json_text(found), encoding="utf-8")

"""sleuth data difficulty: how often an agent fails each question."""

from itertools import count
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sleuth.api.progress import StageProgress
from sleuth.cli.options import MAX_ITEMS, MAX_SEED
from sleuth.cli.terminal import echo, silence_transformers
from sleuth.runs.atomic import require_new


def difficulty(
    file: Annotated[Path, Argument(metavar="QUESTIONS", help="Question file.")],
    source: Annotated[str, Argument(metavar="RUN|MODEL", help="Agent to measure: a run or a model.")],
    out: Annotated[Path, Option(help="Output question file (.jsonl or .jsonl.gz); it must not exist.")],
    index: Annotated[str | None, Option(help="With a model: index folder, retrieval server, or web:PROVIDER.")] = None,
    samples: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Attempts per question.")] = 4,
    seed: Annotated[int, Option(min=0, max=MAX_SEED, help="Sampling seed.")] = 0,
    settings: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="With a model: a setting.")] = None,
) -> None:
    """Measure how difficult each question is for an agent: 0 if every attempt is correct, 1 if none is."""
    require_new(out)
    from sleuth.agent.loading import load_agent
    from sleuth.corpus.questions import read_rows, write_rows
    from sleuth.runs.interruption import INTERRUPTION, run_interruptible
    from sleuth.synthesis.candidate import DIFFICULTY
    from sleuth.synthesis.difficulty import measure_difficulty

    silence_transformers()
    rows = list(read_rows(file))
    agent, config, _ = load_agent(source, file, index, settings or [])
    with StageProgress() as progress, INTERRUPTION.handle_signals():
        asked = count(1)
        total = len(rows) * samples
        measured = run_interruptible(
            measure_difficulty(
                agent, rows, samples, config.concurrency, seed, lambda _: progress("answering", next(asked), total)
            )
        )
    write_rows(out, measured)
    values = [float(row.extra[DIFFICULTY]) for row in measured]
    always, never = values.count(0.0), values.count(1.0)
    echo(f"{len(values):>9,}  questions; {always:,} always answered correctly, {never:,} never")
    echo(f"{sum(values) / max(1, len(values)):>9.2f}  mean difficulty")
    echo(f"           {out}")

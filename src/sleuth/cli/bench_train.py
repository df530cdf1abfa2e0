"""sleuth bench train: forward and backward passes, ours beside the stock way, in one run."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sleuth.cli.options import MAX_INT, MAX_ITEMS, MAX_TOKENS, require_new_file
from sleuth.cli.terminal import echo
from sleuth.errors import InputError

SHAPE = "smollm2-135m"
ROWS = {"cuda": 16, "cpu": 2}


def train(
    shape: Annotated[str | None, typer.Option(help="a published shape, such as qwen2.5-3b", show_default=SHAPE)] = None,
    model: Annotated[
        Path | None, typer.Option(help="a model folder, for its shape alone: weights are drawn at random")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=2, max=MAX_INT, help="of a pass; default: 16, CPU: 2")] = None,
    row_tokens: Annotated[int, typer.Option(min=2, max=MAX_TOKENS, help="of a row")] = 1000,
    recompute: Annotated[float, typer.Option(min=0, max=1, help="share of our layers computed again backwards")] = 0.0,
    repetitions: Annotated[
        int, typer.Option(min=1, max=MAX_ITEMS, help="of which the median counts, after a warm-up of 3")
    ] = 5,
    json_file: Annotated[Path | None, typer.Option("--json", help="a new file for every repetition")] = None,
) -> None:
    """Measure training: our forward and backward passes beside stock Hugging Face's; the table is Markdown.

    Ends with 1 where memory shows that logits of all tokens may have been made at once.
    """
    require_new_file(json_file)
    from dataclasses import asdict

    from sleuth.bench import training
    from sleuth.bench.measurement import default_device, describe_machine
    from sleuth.bench.models import choose_shape
    from sleuth.cli.terminal import silence_transformers

    silence_transformers()
    name, chosen = choose_shape(shape, model, SHAPE)
    if row_tokens > (known := chosen.max_position_embeddings):
        raise InputError(f"--row-tokens {row_tokens} is more than the {known} positions of the model; lower it")
    work = training.Work(rows or ROWS[default_device().type], row_tokens, repetitions, recompute)
    echo(f"{describe_machine()}\n")
    timings = training.compare(chosen, work, log=lambda line: echo(line, err=True))
    echo(training.table(name, work, timings).markdown())
    grown = training.head_growth(chosen, work.tokens)
    if grown is not None:
        echo(f"\n{grown.describe()}")
    if json_file is not None:
        figures = {"ways": [asdict(each) for each in timings], "head": None if grown is None else asdict(grown)}
        kept = {"machine": describe_machine(), "shape": name, "work": asdict(work), **figures}
        json_file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    if grown is not None and not grown.chunked:
        raise typer.Exit(1)

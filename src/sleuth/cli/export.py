"""sleuth export: a checkpoint as a model folder for others."""

from pathlib import Path
from typing import Annotated

import typer

from sleuth.cli.options import MAX_INT
from sleuth.cli.terminal import Terminal


def export(
    source: Annotated[Path, typer.Argument(metavar="RUN|CHECKPOINT", help="a run folder, or one of its checkpoints")],
    out: Annotated[Path, typer.Argument(help="the folder to make, which must not exist")],
    step: Annotated[
        int | None, typer.Option(min=0, max=MAX_INT, help="the checkpoint of this step of the run; default: the newest")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="the checkpoint with the highest held-out score")] = False,
    dtype: Annotated[
        str | None, typer.Option(help="round the weights: bfloat16, float16 or float32; default: as they are")
    ] = None,
) -> None:
    """Write a plain Hugging Face folder, for transformers, vLLM and others; an adapter is merged into the weights."""
    from sleuth.cli.terminal import silence_transformers
    from sleuth.train import export as exporting

    silence_transformers()
    checkpoint = exporting.find_checkpoint(source, step, best)
    exporting.export(checkpoint, out, dtype)
    console = Terminal(stderr=True, markup=False, highlight=False)
    for sentence in (f"{checkpoint} exported to {out}", *exporting.describe_source(source, best)):
        console.print(sentence, soft_wrap=True)

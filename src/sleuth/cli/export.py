"""sleuth export: convert a checkpoint to a plain Hugging Face model folder."""

from pathlib import Path
from typing import Annotated

import typer

from sleuth.cli.options import MAX_INT
from sleuth.cli.terminal import Terminal


def export(
    source: Annotated[Path, typer.Argument(metavar="RUN|CHECKPOINT", help="A run folder, or one of its checkpoints.")],
    out: Annotated[Path, typer.Argument(help="Output folder; it must not exist.")],
    step: Annotated[
        int | None, typer.Option(min=0, max=MAX_INT, help="Step of the checkpoint. Default: the newest.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="Use the checkpoint with the best evaluation.")] = False,
    dtype: Annotated[
        str | None, typer.Option(help="Convert to bfloat16, float16 or float32. Default: unchanged.")
    ] = None,
) -> None:
    """Write a Hugging Face model folder for transformers, vLLM and others; LoRA adapters are merged."""
    from sleuth.cli.terminal import silence_transformers
    from sleuth.train import export as exporting

    silence_transformers()
    checkpoint = exporting.find_checkpoint(source, step, best)
    exporting.export(checkpoint, out, dtype)
    console = Terminal(stderr=True, markup=False, highlight=False)
    for sentence in (f"{checkpoint} exported to {out}", *exporting.describe_source(source, best)):
        console.print(sentence, soft_wrap=True)

"""sleuth export: convert a checkpoint to a plain Hugging Face model folder, or to a Megatron checkpoint."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sleuth.cli.options import MAX_INT
from sleuth.cli.terminal import Terminal


def export(
    source: Annotated[Path, Argument(metavar="RUN|CHECKPOINT", help="A run folder, or one of its checkpoints.")],
    out: Annotated[Path, Argument(help="Output folder; it must not exist.")],
    step: Annotated[int | None, Option(min=0, max=MAX_INT, help="Step of the checkpoint. Default: the newest.")] = None,
    best: Annotated[bool, Option("--best", help="Use the checkpoint with the best evaluation.")] = False,
    dtype: Annotated[str | None, Option(help="Convert to bfloat16, float16 or float32. Default: unchanged.")] = None,
    megatron: Annotated[bool, Option("--megatron", help="Write a Megatron-core checkpoint (torch_dist).")] = False,
) -> None:
    """Write a Hugging Face model folder for transformers, vLLM and others; LoRA adapters are merged."""
    from sleuth.cli.terminal import silence_transformers
    from sleuth.train import export as exporting

    silence_transformers()
    checkpoint = exporting.find_checkpoint(source, step, best)
    (exporting.export_megatron if megatron else exporting.export)(checkpoint, out, dtype)
    console = Terminal(stderr=True, markup=False, highlight=False)
    for sentence in (f"{checkpoint} exported to {out}", *exporting.describe_source(source, best)):
        console.print(sentence, soft_wrap=True)

"""sleuth import: convert a Megatron checkpoint to a Hugging Face model folder."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sleuth.cli.terminal import Terminal
from sleuth.config import recipe


def import_(
    out: Annotated[Path, Argument(help="Output folder; it must not exist.")],
    megatron: Annotated[Path, Option(metavar="DIR", help="Megatron-core checkpoint (torch_dist) or iteration folder.")],
    like: Annotated[str, Option(metavar="FOLDER", help="Model that Megatron trained, for config and tokenizer.")],
) -> None:
    """Convert a Megatron checkpoint of Qwen2, Qwen2.5, Qwen3 or Llama to a Hugging Face model folder."""
    folder = recipe.resolve_policy(like)
    from sleuth.cli.terminal import silence_transformers
    from sleuth.model.megatron import import_checkpoint

    silence_transformers()
    imported = import_checkpoint(megatron, folder, out)
    console = Terminal(stderr=True, markup=False, highlight=False)
    console.print(f"{imported.source} imported to {out}: {imported.weights} weights, {imported.dtype}", soft_wrap=True)
    if imported.ignored:
        counts = ", ".join(f"{count} {kind}" for kind, count in imported.ignored.items())
        console.print(f"ignored, not weights: {counts}", soft_wrap=True)

"""Options that benchmarks of whole episodes share."""

from pathlib import Path
from typing import Annotated

import typer

from sleuth.cli.options import MAX_ITEMS, MAX_TOKENS

SHAPE = "smollm2-135m"
SLOTS = {"cuda": 1024, "cpu": 16}

Shape = Annotated[str | None, typer.Option(help="a published shape, such as qwen2.5-3b", show_default=SHAPE)]
Model = Annotated[
    Path | None, typer.Option(help="a model folder, for shape and tokenizer: weights are drawn at random")
]  # fmt: skip
Searches = Annotated[int, typer.Option(min=0, max=MAX_ITEMS, help="of an episode; it has one turn more")]
PromptTokens = Annotated[int, typer.Option(min=1, max=MAX_TOKENS, help="of a prompt, about")]
TurnTokens = Annotated[int, typer.Option(min=1, max=MAX_TOKENS, help="sampled in every turn, exactly")]
ObservationTokens = Annotated[int, typer.Option(min=1, max=MAX_TOKENS, help="shown of what a search found")]
Slots = Annotated[int | None, typer.Option(min=1, max=MAX_ITEMS, help="Concurrent episodes. Default: 1024, CPU: 16.")]
EngineMemory = Annotated[
    float, typer.Option(min=0.001, max=1, help="share of the GPU's memory for keys and values at most")
]
Passages = Annotated[int, typer.Option(min=100, max=1_000_000, help="of the generated encyclopedia")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="a new file for every figure")]

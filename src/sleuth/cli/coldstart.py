"""sleuth coldstart: train the initial policy of the quickstart."""

from pathlib import Path
from typing import Annotated

import typer

from sleuth.cli.options import MAX_SEED
from sleuth.cli.progress import TrainingProgress
from sleuth.cli.terminal import Terminal
from sleuth.runs.atomic import require_new


def coldstart(
    out: Annotated[Path, typer.Option(help="Output model folder; it must not exist.")],
    seed: Annotated[
        int, typer.Option(min=0, max=MAX_SEED, help="Seed of weights and demonstrations; the shipped policy uses 2.")
    ] = 2,
) -> None:
    """Train the quickstart's small initial policy from scratch, on demonstrations of mixed quality."""
    require_new(out)
    from sleuth.cli.terminal import silence_transformers
    from sleuth.sft.quickstart_policy import Plan, make_policy

    silence_transformers()
    console = Terminal(stderr=True, markup=False, highlight=False)
    with TrainingProgress(console) as live:
        stage = ""

        def progress(phase: str, _step: int, steps: int, _loss: float) -> None:
            nonlocal stage
            if phase != stage:
                live.begin(f"learning from {phase} demonstrations", steps)
                stage = phase
            live.advance()

        found = make_policy(Plan(seed=seed), out, progress)
    console.print(f"wrote {out}: the expert's ceiling is EM {found.em.value:.2f}; train it with:", soft_wrap=True)
    console.print(f"sleuth train quickstart --set model.policy={out}", soft_wrap=True)

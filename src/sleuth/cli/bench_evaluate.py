"""sleuth bench evaluate: questions a second."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sleuth.cli.bench_step import SHAPE, SLOTS
from sleuth.cli.fresh import require_new


def evaluate(
    shape: Annotated[str | None, typer.Option(help="a published shape, such as qwen2.5-3b", show_default=SHAPE)] = None,
    model: Annotated[
        Path | None, typer.Option(help="a model folder, for shape and tokenizer: weights are drawn at random")
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="to ask")] = 5000,
    searches: Annotated[int, typer.Option(min=0, help="of an episode; it has one turn more")] = 2,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="of a prompt, about")] = 180,
    turn_tokens: Annotated[int, typer.Option(min=1, help="sampled in every turn, exactly")] = 80,
    observation_tokens: Annotated[int, typer.Option(min=1, help="shown of what a search found")] = 240,
    slots: Annotated[int | None, typer.Option(min=1, help="episodes at the same time; default: 1024, CPU: 16")] = None,
    engine_memory: Annotated[
        float, typer.Option(min=0.001, max=1, help="share of the GPU's memory for keys and values at most")
    ] = 0.6,
    warmup: Annotated[int, typer.Option(min=0, help="questions asked first, which are not counted")] = 64,
    passages: Annotated[int, typer.Option(min=100, max=1_000_000, help="of the generated encyclopedia")] = 20_000,
    json_file: Annotated[Path | None, typer.Option("--json", help="a new file for every figure")] = None,
) -> None:
    """Measure how fast questions are evaluated on random weights, and what Search-R1's 51,713 would take."""
    require_new(json_file)
    from dataclasses import asdict

    from sleuth.bench import evaluating, policies, shapes
    from sleuth.bench.device import here
    from sleuth.bench.plan import Plan
    from sleuth.bench.table import machine
    from sleuth.cli.quiet import quiet

    quiet()
    name, chosen = shapes.one(shape, model, SHAPE)
    plan = Plan(
        questions=questions,
        samples=1,
        searches=searches,
        prompt_tokens=prompt_tokens,
        turn_tokens=turn_tokens,
        observation_tokens=observation_tokens,
        slots=min(slots or SLOTS[here().type], questions),
        engine_memory=engine_memory,
        warmup=warmup,
        passages=passages,
    )
    typer.echo(f"{machine()}\n")
    found = evaluating.measure(chosen, policies.tokens(chosen, model), plan, lambda line: typer.echo(line, err=True))
    typer.echo(found.table(name, plan).markdown())
    if json_file is not None:
        kept = {"machine": machine(), "shape": name, "plan": asdict(plan), **asdict(found), "rate": found.rate}
        json_file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")

"""sleuth bench evaluate: questions a second."""

import json
from typing import Annotated

import typer

from sleuth.cli import bench_options as options
from sleuth.cli.options import MAX_ITEMS, require_new_file
from sleuth.cli.terminal import echo


def evaluate(
    shape: options.Shape = None,
    model: options.Model = None,
    questions: Annotated[int, typer.Option(min=1, max=MAX_ITEMS, help="to ask")] = 5000,
    searches: options.Searches = 2,
    prompt_tokens: options.PromptTokens = 180,
    turn_tokens: options.TurnTokens = 80,
    observation_tokens: options.ObservationTokens = 240,
    slots: options.Slots = None,
    engine_memory: options.EngineMemory = 0.6,
    warmup: Annotated[int, typer.Option(min=0, max=MAX_ITEMS, help="Warm-up questions, not counted.")] = 64,
    passages: options.Passages = 20_000,
    json_file: options.JsonFile = None,
) -> None:
    """Measure how fast questions are evaluated on random weights, and what Search-R1's 51,713 would take."""
    require_new_file(json_file)
    from dataclasses import asdict

    from sleuth.bench.episodes import Plan
    from sleuth.bench.evaluation import measure
    from sleuth.bench.measurement import default_device, describe_machine
    from sleuth.bench.models import choose_shape, load_tokens
    from sleuth.cli.terminal import silence_transformers

    silence_transformers()
    name, chosen = choose_shape(shape, model, options.SHAPE)
    plan = Plan(
        questions=questions,
        samples=1,
        searches=searches,
        prompt_tokens=prompt_tokens,
        turn_tokens=turn_tokens,
        observation_tokens=observation_tokens,
        slots=min(slots or options.SLOTS[default_device().type], questions),
        engine_memory=engine_memory,
        warmup=warmup,
        passages=passages,
    )
    echo(f"{describe_machine()}\n")
    found = measure(chosen, load_tokens(chosen, model), plan, lambda line: echo(line, err=True))
    echo(found.table(name, plan).markdown())
    if json_file is not None:
        kept = {"machine": describe_machine(), "shape": name, "plan": asdict(plan), **asdict(found), "rate": found.rate}
        json_file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")

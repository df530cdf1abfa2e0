"""sleuth bench step: where the time of a whole step goes."""

import json
from typing import Annotated

import typer

from sleuth.cli import bench_options as options
from sleuth.cli.options import MAX_ITEMS, MAX_TOKENS, require_new_file
from sleuth.cli.terminal import echo


def step(
    shape: options.Shape = None,
    model: options.Model = None,
    questions: Annotated[int, typer.Option(min=1, max=MAX_ITEMS, help="of a step")] = 512,
    samples: Annotated[int, typer.Option(min=2, max=MAX_ITEMS, help="episodes a question")] = 5,
    searches: options.Searches = 2,
    prompt_tokens: options.PromptTokens = 180,
    turn_tokens: options.TurnTokens = 80,
    observation_tokens: options.ObservationTokens = 240,
    update: Annotated[
        int, typer.Option(min=1, max=MAX_ITEMS, help="trajectories of one update of the weights, at most")
    ] = 256,
    kl: Annotated[bool, typer.Option(help="charge the distance to a reference")] = True,
    lora: Annotated[
        int, typer.Option(min=0, max=MAX_ITEMS, help="rank of an adapter that is trained instead of all weights")
    ] = 0,
    recompute: Annotated[float, typer.Option(min=0, max=1, help="share of the layers computed again backwards")] = 0.0,
    pack_tokens: Annotated[int, typer.Option(min=1, max=MAX_TOKENS, help="of one packed forward pass")] = 16_384,
    slots: options.Slots = None,
    engine_memory: options.EngineMemory = 0.2,
    warmup: Annotated[int, typer.Option(min=0, max=MAX_ITEMS, help="Questions of a warm-up step.")] = 16,
    steps: Annotated[
        int, typer.Option(min=1, max=MAX_ITEMS, help="steps that are counted, each with questions of its own")
    ] = 1,
    passages: options.Passages = 20_000,
    json_file: options.JsonFile = None,
) -> None:
    """Measure a whole Search-R1 step on random weights, part by part; tables are Markdown."""
    require_new_file(json_file)
    from sleuth.bench.episodes import Plan
    from sleuth.bench.measurement import default_device, describe_machine
    from sleuth.bench.models import choose_shape, load_tokens
    from sleuth.bench.step import markdown, measure, record
    from sleuth.cli.terminal import silence_transformers

    silence_transformers()
    name, chosen = choose_shape(shape, model, options.SHAPE)
    plan = Plan(
        questions=questions,
        samples=samples,
        searches=searches,
        prompt_tokens=prompt_tokens,
        turn_tokens=turn_tokens,
        observation_tokens=observation_tokens,
        update=update,
        kl=kl,
        lora=lora,
        recompute=recompute,
        pack_tokens=pack_tokens,
        slots=min(slots or options.SLOTS[default_device().type], questions * samples),
        engine_memory=engine_memory,
        warmup=warmup,
        steps=steps,
        passages=passages,
    )
    echo(f"{describe_machine()}\n")
    tokens = load_tokens(chosen, model)
    measured = measure(chosen, tokens, plan, log=lambda line: echo(line, err=True))
    echo(markdown(name, plan, measured))
    if json_file is not None:
        kept = record(describe_machine(), name, plan, measured)
        json_file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")

"""sleuth sft: a model learns from traces before it learns by itself."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.cli.progress import TrainingProgress
from sleuth.cli.terminal import Terminal
from sleuth.config import recipe
from sleuth.errors import ConfigError, InputError, Interrupted
from sleuth.runs.interruption import INTERRUPTION
from sleuth.sft.settings import SFTConfig, option_help, parse_options

if TYPE_CHECKING:
    from sleuth.sft.run import SFTResult


def sft(
    name: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="a recipe: its model, protocol and limits are taken")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="a Hugging Face folder with model and tokenizer, instead of a recipe's")
    ] = None,
    traces: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="JSONL of messages or trajectories; may be repeated")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="the model folder to write; it must not exist")] = None,
    epochs: Annotated[int | None, typer.Option(help=option_help("epochs"))] = None,
    steps: Annotated[int | None, typer.Option(help=option_help("steps"))] = None,
    batch_rows: Annotated[int | None, typer.Option(help=option_help("batch_rows"))] = None,
    batch_tokens: Annotated[int | None, typer.Option(help=option_help("batch_tokens"))] = None,
    learning_rate: Annotated[float | None, typer.Option(help=option_help("learning_rate"))] = None,
    warmup: Annotated[float | None, typer.Option(help=option_help("warmup"))] = None,
    decay: Annotated[str | None, typer.Option(help=f"cosine, linear or none: {option_help('decay')}")] = None,
    weight_decay: Annotated[float | None, typer.Option(help=option_help("weight_decay"))] = None,
    optimiser: Annotated[str | None, typer.Option(help=f"adamw or adamw8bit: {option_help('optimiser')}")] = None,
    offload: Annotated[bool | None, typer.Option("--offload", help=option_help("offload"))] = None,
    recompute: Annotated[float | None, typer.Option(help=option_help("recompute"))] = None,
    gradient_clip: Annotated[float | None, typer.Option(help=option_help("gradient_clip"))] = None,
    held_out: Annotated[float | None, typer.Option(help=option_help("held_out"))] = None,
    evaluate_every: Annotated[int | None, typer.Option(help=option_help("evaluate_every"))] = None,
    patience: Annotated[int | None, typer.Option(help=option_help("patience"))] = None,
    keep: Annotated[str | None, typer.Option(help=f"best or last: {option_help('keep')}")] = None,
    row_tokens: Annotated[int | None, typer.Option(help=option_help("row_tokens"))] = None,
    overlong: Annotated[str | None, typer.Option(help=f"drop or cut: {option_help('overlong')}")] = None,
    protocol: Annotated[str | None, typer.Option(help=option_help("protocol"))] = None,
    observation_tokens: Annotated[int | None, typer.Option(help=option_help("observation_tokens"))] = None,
    observation_weight: Annotated[float | None, typer.Option(help=option_help("observation_weight"))] = None,
    min_reward: Annotated[float | None, typer.Option(help=option_help("min_reward"))] = None,
    pack_tokens: Annotated[int | None, typer.Option(help=option_help("pack_tokens"))] = None,
    save_minutes: Annotated[float | None, typer.Option(help=option_help("save_minutes"))] = None,
    seed: Annotated[int | None, typer.Option(help=option_help("seed"))] = None,
) -> None:
    """Train a model on traces of searching, so that reinforcement learning has something to begin with."""
    # Before any other name is bound: what is here are the options.
    options = {key: value for key, value in locals().items() if key in SFTConfig.model_fields}
    started = time.monotonic()
    if not traces:
        raise InputError("no traces given; name a JSONL file with --traces, or write one with: sleuth traces")
    if out is None:
        raise InputError("no folder to write given; name one with --out")
    begun, taken = _model(name, model)
    settings = parse_options(taken | {key: value for key, value in options.items() if value is not None})
    from sleuth.cli.terminal import silence_transformers
    from sleuth.runs.atomic import require_new
    from sleuth.sft.run import run

    require_new(out)
    silence_transformers()
    console = Terminal(stderr=True, markup=False, highlight=False)
    try:
        with TrainingProgress(console) as live, INTERRUPTION.handle_signals():
            result = run(begun, traces, out, settings, live)
    except Interrupted:
        console.print("interrupted; give the same command again to continue", soft_wrap=True)
        raise
    console.print(f"wrote {out}: {closing(result, time.monotonic() - started)}", soft_wrap=True)
    console.print(f"train it     sleuth train {name or 'RECIPE'} --set model.policy={out}", soft_wrap=True)


def _model(name: str | None, model: str | None) -> tuple[str, dict[str, object]]:
    """The model to begin with, and what a recipe says of the agent it is to become."""
    if name is None and model is None:
        raise ConfigError("no model given; name a recipe, or a model folder with --model")
    if name is None:
        return str(model), {}
    config = recipe.load(name)
    agent = config.agent
    taken = {"protocol": agent.protocol, "observation_tokens": agent.observation_tokens}
    return model or config.model.policy, taken | {"row_tokens": agent.context_tokens}


def closing(result: "SFTResult", seconds: float) -> str:
    """What was done, in one line."""
    history = result.history
    first, last = history.updates[0], history.updates[-1]
    said = f"{last.step:,} updates on {result.trained:,} traces, loss {first.loss:.3f} -> {last.loss:.3f}"
    if history.held_out:
        before, best = history.held_out[0], history.best
        said += f", held out ({result.held_out:,}) {before.loss:.3f} -> {best.loss:.3f} at step {best.step:,}, kept"
        said += "" if history.kept == best.step else f" step {history.kept:,}"
    return f"{said}, {seconds:,.0f} s"

"""sleuth sft and sleuth coldstart: supervised training before reinforcement learning."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from sleuth.api.progress import TrainingProgress
from sleuth.cli.options import MAX_SEED
from sleuth.cli.terminal import silence_transformers, stderr_console
from sleuth.config import recipe
from sleuth.errors import ConfigError, InputError, Interrupted
from sleuth.runs.atomic import require_new
from sleuth.runs.interruption import INTERRUPTION
from sleuth.sft.settings import SFTConfig, option_help, parse_options

if TYPE_CHECKING:
    from sleuth.sft.run import SFTResult


def sft(
    name: Annotated[str | None, Argument(metavar="RECIPE", help="Recipe with model, protocol and limits.")] = None,
    model: Annotated[str | None, Option(help="Model folder to start from. Default: the recipe's.")] = None,
    traces: Annotated[list[Path] | None, Option(help="JSONL of messages or trajectories; repeatable.")] = None,
    out: Annotated[Path | None, Option(help="Output model folder; it must not exist.")] = None,
    epochs: Annotated[int | None, Option(help=option_help("epochs"))] = None,
    steps: Annotated[int | None, Option(help=option_help("steps"))] = None,
    batch_rows: Annotated[int | None, Option(help=option_help("batch_rows"))] = None,
    batch_tokens: Annotated[int | None, Option(help=option_help("batch_tokens"))] = None,
    learning_rate: Annotated[float | None, Option(help=option_help("learning_rate"))] = None,
    warmup: Annotated[float | None, Option(help=option_help("warmup"))] = None,
    decay: Annotated[str | None, Option(help=f"cosine, linear or none: {option_help('decay')}")] = None,
    weight_decay: Annotated[float | None, Option(help=option_help("weight_decay"))] = None,
    optimiser: Annotated[str | None, Option(help=f"adamw or adamw8bit: {option_help('optimiser')}")] = None,
    offload: Annotated[bool | None, Option("--offload", help=option_help("offload"))] = None,
    recompute: Annotated[float | None, Option(help=option_help("recompute"))] = None,
    gradient_clip: Annotated[float | None, Option(help=option_help("gradient_clip"))] = None,
    held_out: Annotated[float | None, Option(help=option_help("held_out"))] = None,
    evaluate_every: Annotated[int | None, Option(help=option_help("evaluate_every"))] = None,
    patience: Annotated[int | None, Option(help=option_help("patience"))] = None,
    keep: Annotated[str | None, Option(help=f"best or last: {option_help('keep')}")] = None,
    row_tokens: Annotated[int | None, Option(help=option_help("row_tokens"))] = None,
    overlong: Annotated[str | None, Option(help=f"drop or cut: {option_help('overlong')}")] = None,
    protocol: Annotated[str | None, Option(help=option_help("protocol"))] = None,
    observation_tokens: Annotated[int | None, Option(help=option_help("observation_tokens"))] = None,
    observation_weight: Annotated[float | None, Option(help=option_help("observation_weight"))] = None,
    min_reward: Annotated[float | None, Option(help=option_help("min_reward"))] = None,
    pack_tokens: Annotated[int | None, Option(help=option_help("pack_tokens"))] = None,
    save_minutes: Annotated[float | None, Option(help=option_help("save_minutes"))] = None,
    seed: Annotated[int | None, Option(help=option_help("seed"))] = None,
) -> None:
    """Train a model on search traces, as a starting point for reinforcement learning."""
    # Must come first, while locals() contains only the options.
    given = {key: value for key, value in locals().items() if key in SFTConfig.model_fields and value is not None}
    started = time.monotonic()
    if not traces:
        raise InputError("no traces given; name a JSONL file with --traces, or write one with: sleuth traces")
    if out is None:
        raise InputError("no output folder given; name one with --out")
    if name is not None:
        config = recipe.load(name)
        agent, model = config.agent, model or config.model.policy
        given = {
            "protocol": agent.protocol,
            "observation_tokens": agent.observation_tokens,
            "row_tokens": agent.context_tokens,
        } | given
    if model is None:
        raise ConfigError("no model given; name a recipe, or a model folder with --model")
    settings = parse_options(given)
    from sleuth.sft.run import run

    require_new(out)
    silence_transformers()
    console = stderr_console()
    try:
        with TrainingProgress(console) as live, INTERRUPTION.handle_signals():
            result = run(model, traces, out, settings, live)
    except Interrupted:
        console.print("interrupted; the same command resumes", soft_wrap=True)
        raise
    console.print(f"wrote {out}: {describe_result(result, time.monotonic() - started)}", soft_wrap=True)
    console.print(f"train it     sleuth train {name or 'RECIPE'} --set model.policy={out}", soft_wrap=True)


def describe_result(result: "SFTResult", seconds: float) -> str:
    """Describe the updates, traces, losses and time of a training run in one line."""
    history = result.history
    first, last = history.updates[0], history.updates[-1]
    line = f"{last.step:,} updates on {result.trained:,} traces, loss {first.loss:.3f} -> {last.loss:.3f}"
    if history.held_out:
        before, best = history.held_out[0], history.best
        line += f", held out ({result.held_out:,}) {before.loss:.3f} -> {best.loss:.3f} at step {best.step:,}, kept"
        line += "" if history.kept == best.step else f" step {history.kept:,}"
    return f"{line}, {seconds:,.0f} s"


def coldstart(
    out: Annotated[Path, Option(help="Output model folder; it must not exist.")],
    protocol: Annotated[
        Literal["tags", "tools"], Option(help="Search tags, or function calls through a chat template.")
    ] = "tags",
    seed: Annotated[
        int | None, Option(min=0, max=MAX_SEED, help="Random seed.", show_default="that of the shipped policy")
    ] = None,
) -> None:
    """Train the small initial policy of quickstart or quickstart-tools from scratch, on demonstrations."""
    require_new(out)
    from sleuth.sft.dialects import DIALECTS
    from sleuth.sft.quickstart_policy import SHIPPED_SEEDS, Plan, make_policy

    silence_transformers()
    console = stderr_console()
    plan = Plan(seed=SHIPPED_SEEDS[protocol] if seed is None else seed, dialect=DIALECTS[protocol])
    with TrainingProgress(console) as live:
        stage = ""

        def progress(phase: str, _step: int, steps: int, _loss: float) -> None:
            nonlocal stage
            if phase != stage:
                live.begin(f"learning from {phase} demonstrations", steps)
                stage = phase
            live.advance()

        found = make_policy(plan, out, progress)
    console.print(f"wrote {out}: the expert's ceiling is EM {found.em.value:.2f}; train it with:", soft_wrap=True)
    console.print(f"sleuth train {plan.dialect.recipe} --set model.policy={out}", soft_wrap=True)

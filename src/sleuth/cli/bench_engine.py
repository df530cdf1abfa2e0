"""sleuth bench engine: tokens a second of our engine and of vLLM, in one run."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sleuth.bench.workloads import Sizes, Workload, jobs
from sleuth.cli.options import MAX_ITEMS, MAX_TOKENS, require_new_file
from sleuth.cli.terminal import echo
from sleuth.errors import InputError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from sleuth.bench.generation import Comparison

SHAPE = "smollm2-135m"
CONCURRENT = {"cuda": (512, 1024), "cpu": (8,)}


class PeerName(StrEnum):
    """What ours is measured beside."""

    VLLM = "vllm"
    NONE = "none"


def engine(
    shape: Annotated[
        list[str] | None,
        typer.Option(help="a published shape, such as qwen2.5-3b; give it again for more", show_default=SHAPE),
    ] = None,
    model: Annotated[
        list[Path] | None, typer.Option(help="a model folder, for its shape alone: weights are drawn at random")
    ] = None,
    workload: Annotated[
        list[Workload] | None,
        typer.Option(
            help="single: one prompt a sample; groups: samples that share prompts; turns: two turns with an "
            "observation between them; give it again for more",
            show_default="all",
        ),
    ] = None,
    concurrent: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=MAX_ITEMS,
            help="Concurrent episodes; repeatable. Default: 512 and 1024, CPU: 8.",
        ),
    ] = None,
    group: Annotated[int, typer.Option(min=1, max=MAX_ITEMS, help="samples that share a prompt, in groups")] = 8,
    prompt_tokens: Annotated[int, typer.Option(min=1, max=MAX_TOKENS, help="of a prompt")] = 300,
    new_tokens: Annotated[int, typer.Option(min=1, max=MAX_TOKENS, help="sampled a turn")] = 128,
    observation_tokens: Annotated[int, typer.Option(min=1, max=MAX_TOKENS, help="given between two turns")] = 500,
    repetitions: Annotated[
        int, typer.Option(min=1, max=MAX_ITEMS, help="Repetitions after a warm-up; the best counts.")
    ] = 3,
    peer: Annotated[PeerName, typer.Option(help="what ours is measured beside")] = PeerName.VLLM,
    vllm_python: Annotated[
        str, typer.Option(help="the Python of an environment that has vLLM", show_default="this one")
    ] = sys.executable,
    vllm_setting: Annotated[
        list[str] | None, typer.Option(help="an argument of vLLM's LLM, as NAME=JSON; give it again for more")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(min=0.01, max=1, help="share of the GPU's memory for our keys and values")
    ] = None,
    prefill_tokens: Annotated[
        int | None, typer.Option(min=1, max=MAX_TOKENS, help="given tokens our engine takes in a step")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="a new file for every repetition")] = None,
) -> None:
    """Measure generation: our engine beside vLLM, random weights, the same episodes; the table is Markdown."""
    require_new_file(json_file)
    theirs, ours = _settings(vllm_setting or []), {"memory": memory, "prefill_tokens": prefill_tokens}
    import torch

    from sleuth.bench.generation import Peer, compare
    from sleuth.bench.measurement import describe_machine
    from sleuth.cli.terminal import silence_transformers

    silence_transformers()
    shapes = _shapes(shape or [], model or [])
    sizes = Sizes(group, prompt_tokens, new_tokens, observation_tokens)
    concurrents = concurrent or CONCURRENT["cuda" if torch.cuda.is_available() else "cpu"]
    echo(f"{describe_machine()}\n")
    comparisons = [
        compare(
            name,
            each,
            jobs(workload or list(Workload), concurrents, sizes),
            repetitions=repetitions,
            peer=Peer(vllm_python, theirs) if peer is PeerName.VLLM else None,
            settings={name: value for name, value in ours.items() if value is not None},
            log=lambda line: echo(line, err=True),
        )
        for name, each in shapes.items()
    ]
    echo(_told(comparisons, sizes, repetitions))
    if json_file is not None:
        json_file.write_text(_kept(describe_machine(), comparisons), encoding="utf-8")


def _settings(pairs: list[str]) -> dict[str, Any]:
    """NAME=JSON pairs as arguments; what is no JSON is taken as text."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name.isidentifier() and equals):
            raise InputError(f"--vllm-setting {pair!r} sets nothing; write NAME=JSON, such as block_size=32")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def _shapes(names: list[str], folders: list[Path]) -> "dict[str, PretrainedConfig]":
    """By the name it has in the table; without either, the default shape."""
    from sleuth.bench.models import published_shape, shape_of_folder

    if not names and not folders:
        names = [SHAPE]
    found = {name: published_shape(name) for name in names}
    return found | {folder.resolve().name: shape_of_folder(folder) for folder in folders}


def _told(comparisons: "list[Comparison]", sizes: Sizes, repetitions: int) -> str:
    """Which vLLM it was, the table, and why vLLM failed where it did."""
    from sleuth.bench.generation import table

    rows = [row for comparison in comparisons for row in comparison.rows]
    lengths = f"{sizes.prompt} prompt and {sizes.new} new tokens, groups of {sizes.group}"
    lengths += f", {sizes.observation} tokens observed between turns"
    described = {
        f"vLLM {each.theirs.version}: {', '.join(f'{name} {value}' for name, value in each.theirs.settings.items())}"
        for each in comparisons
        if each.theirs.version
    }
    failures = [f"{each.rows[0].shape}: {each.theirs.failure}" for each in comparisons if each.theirs.failure]
    return "\n\n".join([*sorted(described), table(rows, lengths, repetitions).markdown(), *failures])


def _kept(machine: str, comparisons: "list[Comparison]") -> str:
    from dataclasses import asdict

    return json.dumps({"machine": machine, "shapes": [asdict(each) for each in comparisons]}, indent=1) + "\n"

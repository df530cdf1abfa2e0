"""sleuth bench: measure speed against reference implementations in the same run."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Option

from sleuth.bench.workloads import Sizes, Workload, jobs
from sleuth.cli.options import MAX_HITS, MAX_INT, MAX_ITEMS, MAX_TOKENS, JsonFile, require_new_file
from sleuth.cli.terminal import echo, silence_transformers
from sleuth.errors import InputError

if TYPE_CHECKING:
    from sleuth.bench.episodes import Plan
    from sleuth.bench.generation import Comparison

SHAPE = "smollm2-135m"
# Defaults by device.
CONCURRENT = {"cuda": (512, 1024), "cpu": (8,)}
ROWS = {"cuda": 16, "cpu": 2}
SLOTS = {"cuda": 1024, "cpu": 16}

app = typer.Typer(no_args_is_help=True, help="Measure speed against reference implementations in the same run.")

Shape = Annotated[str | None, Option(help="A published shape, such as qwen2.5-3b.", show_default=SHAPE)]
Model = Annotated[Path | None, Option(help="Model folder for shape and tokenizer; weights are random.")]
Searches = Annotated[int, Option(min=0, max=MAX_ITEMS, help="Searches per episode, which has one more turn.")]
PromptTokens = Annotated[int, Option(min=1, max=MAX_TOKENS, help="Approximate tokens per prompt.")]
TurnTokens = Annotated[int, Option(min=1, max=MAX_TOKENS, help="Sampled tokens per turn.")]
ObservationTokens = Annotated[int, Option(min=1, max=MAX_TOKENS, help="Tokens per search result.")]
Slots = Annotated[int | None, Option(min=1, max=MAX_ITEMS, help="Concurrent episodes. Default: 1024, CPU: 16.")]
EngineMemory = Annotated[float, Option(min=0.001, max=1, help="Maximum fraction of GPU memory for the KV cache.")]
Passages = Annotated[int, Option(min=100, max=1_000_000, help="Passages of the generated encyclopedia.")]
Recompute = Annotated[float, Option(min=0, max=1, help="Fraction of layers with activation checkpointing.")]

Part = StrEnum("Part", ["words", "vectors", "server"])
WORKLOAD_HELP = "single: one prompt per sample; groups: samples share prompts; turns: two turns; repeatable."
PART_HELP = "words: BM25, against bm25s; vectors: exact search, against top-k; server: batched requests; repeatable."


@app.command()
def engine(
    shape: Annotated[list[str] | None, Option(help="A published shape; repeatable.", show_default=SHAPE)] = None,
    model: Annotated[list[Path] | None, Option(help="Model folder for its shape; weights are random.")] = None,
    workload: Annotated[list[Workload] | None, Option(help=WORKLOAD_HELP, show_default="all")] = None,
    concurrent: Annotated[
        list[int] | None,
        Option(min=1, max=MAX_ITEMS, help="Concurrent episodes; repeatable. Default: 512 and 1024, CPU: 8."),
    ] = None,
    group: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Samples per prompt in `groups`.")] = 8,
    prompt_tokens: Annotated[int, Option(min=1, max=MAX_TOKENS, help="Tokens per prompt.")] = 300,
    new_tokens: Annotated[int, Option(min=1, max=MAX_TOKENS, help="Sampled tokens per turn.")] = 128,
    observation_tokens: Annotated[int, Option(min=1, max=MAX_TOKENS, help="Tokens between turns.")] = 500,
    repetitions: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Repetitions after a warm-up; the best counts.")] = 3,
    peer: Annotated[Literal["vllm", "none"], Option(help="Engine to compare with.")] = "vllm",
    vllm_python: Annotated[str, Option(help="Python with vLLM.", show_default="this one")] = sys.executable,
    vllm_setting: Annotated[list[str] | None, Option(help="NAME=JSON for vLLM's LLM; repeatable.")] = None,
    memory: Annotated[float | None, Option(min=0.01, max=1, help="Fraction of GPU memory for our KV cache.")] = None,
    prefill_tokens: Annotated[int | None, Option(min=1, max=MAX_TOKENS, help="Our prefill tokens per step.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Compare the generation speed of our engine and vLLM, on random weights and the same episodes."""
    require_new_file(json_file)
    vllm_settings = _parse_settings(vllm_setting or [])
    import torch

    from sleuth.bench.generation import Peer, compare
    from sleuth.bench.measurement import describe_machine
    from sleuth.model.shapes import published_shape, shape_of_folder

    silence_transformers()
    names = shape or ([] if model else [SHAPE])
    shapes = {name: published_shape(name) for name in names}
    shapes |= {folder.resolve().name: shape_of_folder(folder) for folder in model or ()}
    sizes = Sizes(group, prompt_tokens, new_tokens, observation_tokens)
    levels = concurrent or CONCURRENT["cuda" if torch.cuda.is_available() else "cpu"]
    settings = {"memory": memory, "prefill_tokens": prefill_tokens}
    echo(f"{describe_machine()}\n")
    comparisons = [
        compare(
            name,
            config,
            jobs(workload or list(Workload), levels, sizes),
            repetitions=repetitions,
            peer=Peer(vllm_python, vllm_settings) if peer == "vllm" else None,
            settings={name: value for name, value in settings.items() if value is not None},
            log=_log,
        )
        for name, config in shapes.items()
    ]
    echo(_engine_report(comparisons, sizes, repetitions))
    _write_json(json_file, {"shapes": [asdict(each) for each in comparisons]})


@app.command()
def train(
    shape: Shape = None,
    model: Model = None,
    rows: Annotated[int | None, Option(min=2, max=MAX_INT, help="Rows per pass. Default: 16, CPU: 2.")] = None,
    row_tokens: Annotated[int, Option(min=2, max=MAX_TOKENS, help="Tokens per row.")] = 1000,
    recompute: Recompute = 0.0,
    repetitions: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Repetitions after a warm-up; median.")] = 5,
    json_file: JsonFile = None,
) -> None:
    """Compare our forward and backward passes with stock Hugging Face.

    Exits with code 1 if the memory use suggests that the logits of all tokens were materialised at once.
    """
    require_new_file(json_file)
    from sleuth.bench import training
    from sleuth.bench.measurement import default_device, describe_machine
    from sleuth.bench.models import choose_shape

    silence_transformers()
    name, config = choose_shape(shape, model, SHAPE)
    if row_tokens > (limit := config.max_position_embeddings):
        raise InputError(f"--row-tokens {row_tokens} is more than the {limit} positions of the model; lower it")
    work = training.Work(rows or ROWS[default_device().type], row_tokens, repetitions, recompute)
    echo(f"{describe_machine()}\n")
    timings = training.compare(config, work, log=_log)
    echo(training.table(name, work, timings).markdown())
    growth = training.head_growth(config, work.tokens)
    if growth is not None:
        echo(f"\n{growth.describe()}")
    figures = {"ways": [asdict(each) for each in timings], "head": None if growth is None else asdict(growth)}
    _write_json(json_file, {"shape": name, "work": asdict(work), **figures})
    if growth is not None and not growth.chunked:
        raise typer.Exit(1)


@app.command()
def step(
    shape: Shape = None,
    model: Model = None,
    questions: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Questions per step.")] = 512,
    samples: Annotated[int, Option(min=2, max=MAX_ITEMS, help="Episodes per question.")] = 5,
    searches: Searches = 2,
    prompt_tokens: PromptTokens = 180,
    turn_tokens: TurnTokens = 80,
    observation_tokens: ObservationTokens = 240,
    update: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Maximum trajectories per weight update.")] = 256,
    kl: Annotated[bool, Option(help="Add a KL penalty to a reference model.")] = True,
    lora: Annotated[int, Option(min=0, max=MAX_ITEMS, help="LoRA rank; 0 trains all weights.")] = 0,
    recompute: Recompute = 0.0,
    optimiser: Annotated[Literal["adamw", "adamw8bit"], Option(help="Optimiser.")] = "adamw",
    offload: Annotated[bool, Option("--offload", help="Keep the optimiser's state in host memory.")] = False,
    pack_tokens: Annotated[
        int | None, Option(min=1, max=MAX_TOKENS, help="Tokens per packed pass.", show_default="as train.pack_tokens")
    ] = None,
    slots: Slots = None,
    engine_memory: EngineMemory = 0.2,
    warmup: Annotated[int, Option(min=0, max=MAX_ITEMS, help="Questions of a warm-up step.")] = 16,
    steps: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Measured steps, each on new questions.")] = 1,
    passages: Passages = 20_000,
    json_file: JsonFile = None,
) -> None:
    """Measure the parts of a whole Search-R1 training step on random weights."""
    options = locals()
    require_new_file(json_file)
    from sleuth.bench.measurement import describe_machine
    from sleuth.bench.models import choose_shape, load_tokens
    from sleuth.bench.step import markdown, measure, record

    silence_transformers()
    name, config = choose_shape(shape, model, SHAPE)
    plan = _plan(options, questions * samples)
    echo(f"{describe_machine()}\n")
    measured = measure(config, load_tokens(config, model), plan, log=_log)
    echo(markdown(name, plan, measured))
    _write_json(json_file, record(describe_machine(), name, plan, measured))


@app.command()
def plan(
    setting: Annotated[list[str] | None, Option(help="Name of a setting; repeatable.", show_default="all")] = None,
    questions: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Questions per step, 8 episodes each.")] = 32,
    json_file: JsonFile = None,
) -> None:
    """Compare the memory and time that `sleuth plan` predicts with a measured step, for several settings."""
    require_new_file(json_file)
    from sleuth.bench.measurement import describe_machine
    from sleuth.bench.planning import choose_settings, markdown, measure_each

    silence_transformers()
    chosen = choose_settings(setting, questions)
    echo(f"{describe_machine()}\n")
    rows = measure_each(chosen, _log)
    echo(markdown(rows))
    _write_json(json_file, {"settings": [asdict(each) for each in rows]})


@app.command()
def evaluate(
    shape: Shape = None,
    model: Model = None,
    questions: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Number of questions.")] = 5000,
    searches: Searches = 2,
    prompt_tokens: PromptTokens = 180,
    turn_tokens: TurnTokens = 80,
    observation_tokens: ObservationTokens = 240,
    slots: Slots = None,
    engine_memory: EngineMemory = 0.6,
    warmup: Annotated[int, Option(min=0, max=MAX_ITEMS, help="Warm-up questions, not counted.")] = 64,
    passages: Passages = 20_000,
    json_file: JsonFile = None,
) -> None:
    """Measure evaluation speed on random weights, and estimate the time for Search-R1's 51,713 questions."""
    options = locals()
    require_new_file(json_file)
    from sleuth.bench.evaluation import measure
    from sleuth.bench.measurement import describe_machine
    from sleuth.bench.models import choose_shape, load_tokens

    silence_transformers()
    name, config = choose_shape(shape, model, SHAPE)
    plan = _plan(options | {"samples": 1}, questions)
    echo(f"{describe_machine()}\n")
    found = measure(config, load_tokens(config, model), plan, _log)
    echo(found.table(name, plan).markdown())
    _write_json(json_file, {"shape": name, "plan": asdict(plan), **asdict(found), "rate": found.rate})


@app.command()
def gateway(
    shape: Shape = None,
    model: Model = None,
    clients: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Concurrent clients, and episodes of our agent.")] = 256,
    processes: Annotated[
        int | None, Option(min=1, max=MAX_ITEMS, help="Processes of the clients. Default: half of the cores.")
    ] = None,
    questions: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Questions per agent and round.")] = 512,
    samples: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Episodes per question.")] = 4,
    searches: Searches = 2,
    prompt_tokens: PromptTokens = 180,
    turn_tokens: TurnTokens = 80,
    observation_tokens: ObservationTokens = 240,
    engine_memory: EngineMemory = 0.6,
    warmup: Annotated[int, Option(min=0, max=MAX_ITEMS, help="Warm-up questions per agent, not counted.")] = 128,
    rounds: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Times that each agent is measured.")] = 2,
    passages: Passages = 20_000,
    json_file: JsonFile = None,
) -> None:
    """Compare agents that call the policy over HTTP with the built-in agent, on random weights and the same engine."""
    options = locals()
    require_new_file(json_file)
    from sleuth.bench.gateway import markdown, measure, record
    from sleuth.bench.measurement import describe_machine
    from sleuth.bench.models import choose_shape, load_tokens

    silence_transformers()
    name, config = choose_shape(shape, model, SHAPE)
    plan = _plan(options | {"slots": clients, "steps": rounds, "update": samples}, questions * samples)
    used = min(processes or max(1, len(os.sched_getaffinity(0)) // 2), plan.slots)
    echo(f"{describe_machine()}\n")
    measured = measure(config, load_tokens(config, model), plan, used, _log)
    echo(markdown(name, plan, used, measured))
    _write_json(json_file, record(name, plan, used, measured))


@app.command()
def retrieval(
    part: Annotated[list[Part] | None, Option(help=PART_HELP, show_default="all")] = None,
    corpus: Annotated[Path | None, Option(help="Corpus to index. Default: a generated encyclopedia.")] = None,
    questions: Annotated[list[Path] | None, Option(help="Question files; required with --corpus.")] = None,
    passages: Passages = 100_000,
    rows: Annotated[int | None, Option(min=1, max=MAX_INT, help="Vectors. Default: wiki-18's, CPU: 200,000.")] = None,
    dimensions: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Dimensions of a vector.")] = 768,
    k: Annotated[int, Option(min=1, max=MAX_HITS, help="Hits per query.")] = 3,
    kind: Annotated[Literal["bm25", "dense", "hybrid"], Option(help="Kind of the served index.")] = "bm25",
    clients: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Concurrent clients of the server.")] = 256,
    seconds: Annotated[float, Option(min=1, max=86_400, help="Duration of the load on each server.")] = 60.0,
) -> None:
    """Compare BM25 search, vector search and the search server with reference implementations."""
    if (corpus is None) != (not questions):
        raise InputError("--corpus and --questions belong together; give both, or neither for a generated encyclopedia")
    from sleuth.bench.measurement import describe_machine
    from sleuth.bench.retrieval import bm25_table, dense_table, server_table

    silence_transformers()
    echo(f"{describe_machine()}\n")
    with TemporaryDirectory() as scratch:
        for each in part or Part:
            if each == "vectors":
                table = dense_table(rows, dimensions, k)
            else:
                path, queries = _corpus_and_queries(corpus, questions or [], passages, Path(scratch))
                if each == "words":
                    table = bm25_table(path, queries, k)
                else:
                    table = server_table(path, queries, kind, clients, seconds, Path(scratch) / "index")
            echo(f"{table.markdown()}\n")


def _log(line: str) -> None:
    echo(line, err=True)


def _write_json(path: Path | None, figures: dict[str, Any]) -> None:
    from sleuth.bench.measurement import describe_machine

    if path is not None:
        path.write_text(json.dumps({"machine": describe_machine(), **figures}, indent=1) + "\n", encoding="utf-8")


def _plan(options: Mapping[str, Any], episodes: int) -> "Plan":
    """Build a plan from the options; the default number of slots depends on the device and the number of episodes."""
    from sleuth.bench.episodes import Plan
    from sleuth.bench.measurement import default_device

    slots = min(options["slots"] or SLOTS[default_device().type], episodes)
    given = {each.name: options[each.name] for each in fields(Plan) if each.name in options}
    return Plan(**{**given, "slots": slots})


def _parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Parse NAME=JSON pairs; a value that is not JSON is kept as a string."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name.isidentifier() and equals):
            raise InputError(f"--vllm-setting {pair!r} has no name and value; write NAME=JSON, such as block_size=32")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def _engine_report(comparisons: "list[Comparison]", sizes: Sizes, repetitions: int) -> str:
    """Format vLLM's version and settings, the table, and vLLM's failures."""
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


def _corpus_and_queries(
    corpus: Path | None, questions: list[Path], passages: int, scratch: Path
) -> tuple[Path, list[str]]:
    """Return the given corpus file and queries, or those of a generated encyclopedia."""
    from sleuth.corpus import sources
    from sleuth.corpus.questions import CORPUS, TEST, load
    from sleuth.synthesis.world.world import World, write_world

    if corpus is not None:
        queries = [question.question for path in questions for question in load(path)]
        return sources.plain_corpus(corpus, scratch).path, queries
    world = scratch / "world"
    if not world.exists():
        write_world(World(passages, 0), world, 1, 2000)
    return world / CORPUS, [question.question for question in load(world / TEST)]

"""sleuth traces: something to learn from, out of gold passages or out of a model's own successes."""

import asyncio
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sleuth.cli.options import MAX_HITS, MAX_INT, MAX_ITEMS, MAX_SEED, require_finite
from sleuth.cli.progress import TrainingProgress
from sleuth.cli.terminal import Terminal
from sleuth.cli.traces_answers import answers
from sleuth.config.agent import SINGLE, AgentConfig
from sleuth.config.retrieval import RetrievalConfig
from sleuth.errors import ConfigError, InputError, Interrupted
from sleuth.runs.atomic import require_new
from sleuth.runs.interruption import INTERRUPTION, run_interruptible

if TYPE_CHECKING:
    from sleuth.agent.episode import Agent
    from sleuth.config.tree import Config
    from sleuth.model.tokens import Tokens
    from sleuth.records import Question
    from sleuth.sft.gold import Demonstration, GoldDemonstrator
    from sleuth.sft.rejection import SampledTraces

app = typer.Typer(no_args_is_help=True, help="Write traces for a cold start: sleuth sft learns from them.")
app.command()(answers)
DEFAULT = AgentConfig()
DEFAULT_K = RetrievalConfig().k


@app.command()
def gold(
    questions: Annotated[Path, typer.Option(help="a questions file, best with supporting_ids")],
    out: Annotated[Path, typer.Option(help="the trace file to write (.jsonl or .jsonl.gz); it must not exist")],
    index: Annotated[
        str | None, typer.Option(help="what is searched: an index folder, a server's address, or web:PROVIDER")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="corpus JSONL with the supporting passages, where no index folder holds them")
    ] = None,
    k: Annotated[
        int | None, typer.Option(min=1, max=MAX_HITS, help="passages that a search of the index shows; default 3")
    ] = None,
    prompt: Annotated[
        str, typer.Option(help="the instruction by name, as agent.prompt of a recipe")
    ] = DEFAULT.template,
    protocol: Annotated[str, typer.Option(help="the grammar, as agent.protocol of a recipe")] = DEFAULT.protocol,
    model: Annotated[
        str | None, typer.Option(help="with --protocol tools: the model that is to learn it, whose calls are written")
    ] = None,
    searches: Annotated[
        int, typer.Option(min=1, max=MAX_ITEMS, help="searches at most; questions that take more are left out")
    ] = DEFAULT.searches,
    quotes: Annotated[
        bool, typer.Option("--quotes/--no-quotes", help="thoughts repeat the sentence that they go by")
    ] = False,
    guesses: Annotated[
        bool, typer.Option("--guesses", help="questions whose answer no search shows are answered all the same")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, max=MAX_INT, help="questions at most, the first of the file")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="of the wording")] = 0,
) -> None:
    """Demonstrations from gold passages: the question is searched for, then what that did not show, and answered."""
    require_new(out)
    if index is None and corpus is None:
        raise InputError("neither an index nor a corpus given; name one with --index or --corpus")
    if index is None and k is not None:
        raise ConfigError("--k has no effect without --index: the supporting passages are shown alone; remove it")
    if index is None and guesses:
        raise ConfigError("--guesses has no effect without --index: every passage asked for is shown; remove it")
    from sleuth.agent import prompts
    from sleuth.agent import protocol as protocols
    from sleuth.corpus.questions import load
    from sleuth.retrieval.backends import open_backend, require_ready
    from sleuth.sft.gold import GoldDemonstrator, passage_finder

    if prompt in SINGLE or prompts.DOCUMENTS in prompts.load_template(prompt):
        raise ConfigError(
            f"--prompt {prompt} is for answers without searching; choose another, such as {DEFAULT.template}"
        )
    asked = load(questions)[:limit]
    require_ready(index)
    writer = GoldDemonstrator(
        find=passage_finder(corpus, index, {name for question in asked for name in question.supporting_ids}),
        retriever=None if index is None else open_backend(index),
        protocol=protocols.make_protocol(protocol, _tokens(model, protocol)),
        prompt=prompt,
        k=k or DEFAULT_K,
        searches=searches,
        seed=seed,
        quotes=quotes,
        guesses=guesses,
    )
    console = Terminal(stderr=True, markup=False, highlight=False)
    with TrainingProgress(console) as live:
        made, left_out = asyncio.run(_demonstrated(writer, asked, live))
    if not made:
        raise InputError(f"no question of {questions} makes a demonstration: {_listed(left_out)}")
    _write(out, [each.row for each in made])
    _say_gold(console, out, made, left_out)


@app.command()
def sample(
    source: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="the folder of a run, or of a model")],
    questions: Annotated[Path, typer.Option(help="a questions file")],
    out: Annotated[Path, typer.Option(help="the trace file to write (.jsonl or .jsonl.gz); it must not exist")],
    index: Annotated[
        str | None, typer.Option(help="with a model: what it searches, an index folder, an address or web:PROVIDER")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="with a model: a setting of agent, retrieval, engine or reward"
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, max=MAX_ITEMS, help="episodes a question")] = 8,
    per_question: Annotated[int, typer.Option(min=1, max=MAX_ITEMS, help="traces of a question at most")] = 1,
    min_reward: Annotated[
        float | None,
        typer.Option(callback=require_finite, help="keep episodes with this reward at least; default: exact match"),
    ] = None,
    prefer: Annotated[
        str, typer.Option(help="which are kept where there are more: first, searches or tokens (the fewest)")
    ] = "first",
    temperature: Annotated[float, typer.Option(min=0.01, callback=require_finite, help="of sampling")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="of sampling")] = 0,
) -> None:
    """Rejection sampling: a model answers every question several times, and what was right is kept token by token."""
    require_new(out)
    if prefer not in ("first", "searches", "tokens"):
        raise ConfigError(f"--prefer {prefer!r} is unknown; expected first, searches or tokens")
    from sleuth.cli.terminal import silence_transformers
    from sleuth.config.recipe import resolved
    from sleuth.corpus.questions import load
    from sleuth.reward.rubric import Rubric
    from sleuth.runs.checksums import fingerprint, folder_stamp
    from sleuth.sft import rejection
    from sleuth.sft.rejection import SamplingJournal, SelectionConfig

    silence_transformers()
    asked = load(questions)
    agent, config = _agent(source, questions, index, settings or [])
    selection = SelectionConfig(samples, min_reward, per_question, prefer, temperature, seed)  # type: ignore[arg-type]  # checked above
    console = Terminal(stderr=True, markup=False, highlight=False)
    order = {
        "weights": folder_stamp(_weights(source)),
        "questions": fingerprint(questions),
        "terms": asdict(selection),
        "config": resolved(config),
    }
    try:
        with (
            TrainingProgress(console) as live,
            INTERRUPTION.handle_signals(),
            SamplingJournal.open(out, order) as journal,
        ):
            live.begin("sampling", len(asked) * samples)
            live.advance(journal.read().questions * samples)
            rubric, at_once = Rubric(config.reward), config.concurrency
            sampling = rejection.sample(agent, asked, rubric, selection, at_once, lambda _: live.advance(), journal)
            sampled = run_interruptible(sampling)
            if sampled.rows:
                _write(out, sampled.rows)
    except Interrupted:
        console.print("interrupted; give the same command again to continue", soft_wrap=True)
        raise
    if not sampled.rows:
        raise InputError(
            f"no episode was good enough to keep, of {len(asked) * samples:,}; lower --min-reward, raise --samples, "
            "or begin with: sleuth traces gold"
        )
    _say_sampled(console, out, sampled)


def _tokens(model: str | None, protocol: str) -> "Tokens | None":
    """The tokens of the model that traces are written for, where their protocol depends on it."""
    if model is None:
        return None
    if protocol == "tags":
        raise ConfigError("--model has no effect with --protocol tags, which every model speaks; remove it")
    from sleuth.config.recipe import resolve_policy
    from sleuth.model.tokens import Tokens

    return Tokens.load(resolve_policy(model))


def _weights(source: str) -> Path:
    """The model folder that a run or a model names."""
    from sleuth.agent.loading import latest_checkpoint
    from sleuth.config.recipe import resolve_policy
    from sleuth.runs.run import Run

    is_run = (Path(source) / "manifest.json").is_file()
    return latest_checkpoint(Run.open(Path(source))) if is_run else resolve_policy(source)


def _agent(source: str, questions: Path, index: str | None, settings: list[str]) -> "tuple[Agent, Config]":
    """The agent of a run as it is, or of a model with an index of its own."""
    from sleuth.agent.loading import load_model_agent, load_run_agent, run_config
    from sleuth.runs.run import Run

    if (Path(source) / "manifest.json").is_file():
        if index is not None or settings:
            raise ConfigError(f"{source} is a run, which has its own index and settings; leave out --index and --set")
        run = Run.open(Path(source))
        return load_run_agent(run), run_config(run)
    return load_model_agent(source, questions, index, settings)


async def _demonstrated(
    writer: "GoldDemonstrator", asked: "list[Question]", live: TrainingProgress
) -> "tuple[list[Demonstration], Counter[str]]":
    from sleuth.sft.gold import Skipped

    live.begin("writing demonstrations", len(asked))
    made: list[Demonstration] = []
    left_out: Counter[str] = Counter()
    async for each in writer.demonstrate(asked):
        live.advance()
        if isinstance(each, Skipped):
            left_out[each.reason] += 1
        else:
            made.append(each)
    return made, left_out


def _say_gold(console: Console, out: Path, made: "list[Demonstration]", left_out: Counter[str]) -> None:
    searches = [each for demonstration in made for each in demonstration.searches]
    console.print(f"wrote {out}: {len(made):,} demonstrations with {len(searches):,} searches", soft_wrap=True)
    if guessed := sum(not each.row["found"] for each in made):
        console.print(f"of which {guessed:,} end in a guess", soft_wrap=True)
    if left_out:
        console.print(f"left out: {_listed(left_out)}", soft_wrap=True)
    _next(console, out)


def _say_sampled(console: Console, out: Path, sampled: "SampledTraces") -> None:
    table = Table(title="Kept of each set", title_justify="left", box=SIMPLE_HEAD)
    for column in ("set", "questions", "solved", "traces", "unusable episodes"):
        table.add_column(column, no_wrap=True)
    for source in sampled.counts["asked"]:
        table.add_row(source, *(f"{each[source]:,}" for each in sampled.counts.values()))
    console.print(table)
    console.print(f"wrote {out}: {len(sampled.rows):,} traces", soft_wrap=True)
    _next(console, out)


def _next(console: Console, out: Path) -> None:
    console.print(f"learn it     sleuth sft --model FOLDER --traces {out} --out NEW-FOLDER", soft_wrap=True)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {why}" for why, count in counts.most_common())


def _write(out: Path, rows: list[dict[str, Any]]) -> None:
    from sleuth.sft.traces import write_traces

    write_traces(out, rows)

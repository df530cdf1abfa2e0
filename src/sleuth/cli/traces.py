"""sleuth traces: write training traces from gold passages, gold answers, or a model's own correct episodes."""

import asyncio
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from sleuth.api.progress import TrainingProgress
from sleuth.cli.options import (
    MAX_HITS,
    MAX_INT,
    MAX_ITEMS,
    MAX_SEED,
    KeyEnv,
    ModelName,
    Timeout,
    parse_endpoint,
    require_finite,
)
from sleuth.cli.terminal import silence_transformers, stderr_console
from sleuth.config.agent import SINGLE, UNSEARCHED, AgentConfig
from sleuth.config.retrieval import RetrievalConfig
from sleuth.errors import ConfigError, InputError, Interrupted, NothingMade
from sleuth.runs.atomic import require_new
from sleuth.runs.interruption import INTERRUPTION, run_interruptible

if TYPE_CHECKING:
    from sleuth.agent.episode import ConfiguredRunner
    from sleuth.config.tree import Config
    from sleuth.engines.remote import Endpoint
    from sleuth.model.tokens import Tokens
    from sleuth.records import Question
    from sleuth.sft.gold import Demonstration, GoldAnswerWriter, GoldDemonstrator
    from sleuth.sft.rejection import SampledTraces

DEFAULT = AgentConfig()
DEFAULT_K = RetrievalConfig().k

app = typer.Typer(no_args_is_help=True, help="Write traces for sleuth sft.")

QuestionFile = Annotated[Path, Option(help="A question file.")]
Out = Annotated[Path, Option(help="Output trace file (.jsonl or .jsonl.gz); it must not exist.")]
Limit = Annotated[int | None, Option(min=1, max=MAX_INT, help="Use only the first questions of the file.")]
Abstain = Annotated[
    bool, Option("--abstain", help='Allow "I don\'t know" in the prompt, and answer unanswerable questions with it.')
]
Withhold = Annotated[
    float,
    Option(
        min=0.0,
        max=1.0,
        callback=require_finite,
        help='With --abstain: fraction of questions to write again without their evidence, ending in "I don\'t know".',
    ),
]
WordingSeed = Annotated[int, Option(min=0, max=MAX_SEED, help="Seed of the wording.")]


@app.command()
def gold(
    questions: Annotated[Path, Option(help="A question file, preferably with supporting_ids.")],
    out: Out,
    index: Annotated[str | None, Option(help="Index folder, retrieval server, or web:PROVIDER.")] = None,
    corpus: Annotated[Path | None, Option(help="Corpus JSONL with the supporting passages.")] = None,
    k: Annotated[int | None, Option(min=1, max=MAX_HITS, help="Passages per search. Default: 3.")] = None,
    prompt: Annotated[str, Option(help="Prompt, as in agent.prompt.")] = DEFAULT.template,
    protocol: Annotated[str, Option(help="Protocol, as in agent.protocol.")] = DEFAULT.protocol,
    model: Annotated[str | None, Option(help="With --protocol tools: the model to train.")] = None,
    searches: Annotated[
        int, Option(min=1, max=MAX_ITEMS, help="Maximum searches; questions that need more are skipped.")
    ] = DEFAULT.searches,
    quotes: Annotated[bool, Option("--quotes/--no-quotes", help="Quote the evidence in thoughts.")] = False,
    guesses: Annotated[bool, Option("--guesses", help="Keep questions whose answer no search finds.")] = False,
    abstain: Abstain = False,
    withhold: Withhold = 0.0,
    limit: Limit = None,
    seed: WordingSeed = 0,
) -> None:
    """Write demonstrations from gold passages: search for the question, then for missing passages, and answer."""
    require_new(out)
    if index is None and corpus is None:
        raise InputError("neither --index nor --corpus was given; pass one of them")
    if index is None and k is not None:
        raise ConfigError("--k has no effect without --index: only the supporting passages are shown; remove it")
    if index is None and guesses:
        raise ConfigError("--guesses has no effect without --index: every search finds its passage; remove it")
    _require_abstain(withhold, abstain, index)
    from sleuth.agent import prompts
    from sleuth.agent import protocol as protocols
    from sleuth.corpus.questions import load
    from sleuth.retrieval.backends import open_backend, require_ready
    from sleuth.sft.gold import GoldDemonstrator, passage_finder
    from sleuth.sft.traces import write_traces

    if prompt in SINGLE or prompts.DOCUMENTS in prompts.load_template(prompt):
        raise ConfigError(
            f"--prompt {prompt} is for answers without search; choose another, such as {DEFAULT.template}"
        )
    loaded = load(questions)[:limit]
    require_ready(index)
    demonstrator = GoldDemonstrator(
        find=passage_finder(corpus, index, {name for question in loaded for name in question.supporting_ids}),
        retriever=None if index is None else open_backend(index),
        protocol=protocols.make_protocol(protocol, _tokens(model, protocol)),
        prompt=prompt,
        k=k or DEFAULT_K,
        searches=searches,
        seed=seed,
        quotes=quotes,
        guesses=guesses,
        abstain=abstain,
        withhold=withhold,
    )
    console = stderr_console()
    with TrainingProgress(console) as live:
        made, skipped = asyncio.run(_demonstrate(demonstrator, loaded, live))
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.most_common())
    if not made:
        raise NothingMade(f"no question in {questions} yields a demonstration: {reasons}")
    write_traces(out, [each.row for each in made])
    count = sum(len(each.searches) for each in made)
    console.print(f"wrote {out}: {len(made):,} demonstrations with {count:,} searches", soft_wrap=True)
    abstained = sum(each.question.answerable is False for each in made)
    if abstained:
        console.print(f'{abstained:,} of them end in "I don\'t know"', soft_wrap=True)
    if guessed := sum(not each.row["found"] for each in made) - abstained:
        console.print(f"{guessed:,} of them end in a guess", soft_wrap=True)
    if skipped:
        console.print(f"skipped: {reasons}", soft_wrap=True)
    _print_next(console, out)


def _require_abstain(withhold: float, abstain: bool, index: str | None) -> None:
    if withhold and (not abstain or index is None):
        missing = "--index" if abstain else "--abstain"
        raise ConfigError(f"--withhold {withhold:g} has no effect without {missing}; add {missing}, or remove it")


def _tokens(model: str | None, protocol: str) -> "Tokens | None":
    """Load the tokenizer of the model to train, on which the protocol `tools` depends."""
    if model is None:
        return None
    if protocol == "tags":
        raise ConfigError("--model has no effect with --protocol tags, which is the same for all models; remove it")
    from sleuth.config.recipe import resolve_policy
    from sleuth.model.tokens import Tokens

    return Tokens.load(resolve_policy(model))


async def _demonstrate(
    demonstrator: "GoldDemonstrator", questions: "list[Question]", live: TrainingProgress
) -> "tuple[list[Demonstration], Counter[str]]":
    from sleuth.sft.gold import Skipped, choose_withheld

    again = choose_withheld(questions, demonstrator.withhold, demonstrator.seed)
    live.begin("writing demonstrations", len(questions) + len(again))
    made: list[Demonstration] = []
    skipped: Counter[str] = Counter()
    async for each in demonstrator.demonstrate(questions):
        live.advance()
        if isinstance(each, Skipped):
            skipped[each.reason] += 1
        else:
            made.append(each)
    return made, skipped


def _print_next(console: Console, out: Path) -> None:
    console.print(f"train on it  sleuth sft --model FOLDER --traces {out} --out NEW-FOLDER", soft_wrap=True)


@app.command()
def answers(
    questions: QuestionFile,
    out: Out,
    method: Annotated[str, Option(help="direct, cot or rag, as in agent.method.")] = "rag",
    index: Annotated[str | None, Option(help="With rag: index folder, retrieval server, or web:PROVIDER.")] = None,
    k: Annotated[int, Option(min=1, max=MAX_HITS, help="With rag: documents per question.")] = DEFAULT_K,
    prompt: Annotated[str | None, Option(help="Prompt, as in agent.prompt. Default: the method's.")] = None,
    abstain: Abstain = False,
    withhold: Withhold = 0.0,
    limit: Limit = None,
    seed: WordingSeed = 0,
) -> None:
    """Write gold answers in the format of direct, cot or rag, with the retrieved documents: traces for RAG-SFT."""
    require_new(out)
    if not out.name.endswith((".jsonl", ".jsonl.gz")):
        raise InputError(f"--out {out} is not a trace file name; it must end in .jsonl or .jsonl.gz")
    if method not in SINGLE:
        raise ConfigError(f"--method {method} is not one of {', '.join(SINGLE)}; for search, use: sleuth traces gold")
    if (index is None) != (method in UNSEARCHED):
        raise ConfigError(f"--method {method} and --index do not match: rag needs an index, direct and cot take none")
    _require_abstain(withhold, abstain, index)
    from sleuth.agent import methods
    from sleuth.agent import protocol as protocols
    from sleuth.corpus.questions import load
    from sleuth.retrieval.backends import open_backend, require_ready
    from sleuth.sft.gold import GoldAnswerWriter
    from sleuth.sft.traces import write_traces

    config = AgentConfig(method=method, prompt=prompt)
    methods.make_method(config)
    loaded = load(questions)[:limit]
    answered = [question for question in loaded if abstain or question.answerable is not False]
    require_ready(index)
    retriever = None if index is None else open_backend(index)
    writer = GoldAnswerWriter(
        retriever, k, protocols.make_protocol(config.protocol), config.template, seed, abstain, withhold
    )
    console = stderr_console()
    with TrainingProgress(console) as live:
        rows = asyncio.run(_write_answers(writer, answered, live))
    write_traces(out, rows)
    console.print(f"wrote {out}: {len(rows):,} answers", soft_wrap=True)
    if index is not None:
        console.print(f"{sum(row['found'] for row in rows):,} of them are in the retrieved documents", soft_wrap=True)
    if len(answered) < len(loaded):
        console.print(f"skipped: {len(loaded) - len(answered):,} not answerable", soft_wrap=True)
    _print_next(console, out)


async def _write_answers(
    writer: "GoldAnswerWriter", questions: "list[Question]", live: TrainingProgress
) -> list[dict[str, Any]]:
    from sleuth.sft.gold import choose_withheld

    again = choose_withheld(questions, writer.withhold, writer.seed)
    live.begin("writing answers", len(questions) + len(again))
    rows: list[dict[str, Any]] = []
    async for row in writer.rows(questions):
        live.advance()
        rows.append(row)
    return rows


@app.command()
def sample(
    source: Annotated[str, Argument(metavar="RUN|MODEL|URL", help="A run, a model, or the address of a chat server.")],
    questions: QuestionFile,
    out: Out,
    index: Annotated[str | None, Option(help="Without a run: index folder, retrieval server, or web:PROVIDER.")] = None,
    settings: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="Without a run: a setting.")
    ] = None,
    samples: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Episodes per question.")] = 8,
    per_question: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Maximum traces per question.")] = 1,
    min_reward: Annotated[float | None, Option(callback=require_finite, help="Minimum reward. Default: EM.")] = None,
    prefer: Annotated[str, Option(help="Traces to prefer: first, or fewest searches or tokens.")] = "first",
    temperature: Annotated[float, Option(min=0.01, callback=require_finite, help="Temperature.")] = 1.0,
    seed: Annotated[int, Option(min=0, max=MAX_SEED, help="Sampling seed.")] = 0,
    messages: Annotated[
        bool, Option("--messages", help="Write messages instead of tokens, to train another model.")
    ] = False,
    served: ModelName = None,
    key_env: KeyEnv = None,
    timeout: Timeout = None,
) -> None:
    """Rejection sampling: answer every question several times and keep the correct episodes."""
    require_new(out)
    if prefer not in ("first", "searches", "tokens"):
        raise ConfigError(f"--prefer {prefer!r} is unknown; expected first, searches or tokens")
    from sleuth.config.recipe import resolved
    from sleuth.corpus.questions import load
    from sleuth.reward.rubric import Rubric
    from sleuth.runs.checksums import fingerprint
    from sleuth.sft import rejection
    from sleuth.sft.traces import write_traces

    silence_transformers()
    loaded = load(questions)
    endpoint = parse_endpoint(source, served, key_env, timeout)
    if endpoint is not None and not messages:
        raise ConfigError(f"{source} is a server, which returns no token ids; add --messages")
    agent, config, weights, concurrency = _load_sampler(source, endpoint, questions, index, settings or [])
    selection = rejection.SelectionConfig(samples, min_reward, per_question, prefer, temperature, seed, messages)  # type: ignore[arg-type]  # checked above
    stamp = {
        "weights": weights,
        "questions": fingerprint(questions),
        "terms": asdict(selection),
        "config": resolved(config),
    }
    console = stderr_console()
    try:
        with (
            TrainingProgress(console) as live,
            INTERRUPTION.handle_signals(),
            rejection.SamplingJournal.open(out, stamp) as journal,
        ):
            live.begin("sampling", len(loaded) * samples)
            live.advance(journal.read().questions * samples)
            sampling = rejection.sample(
                agent, loaded, Rubric(config.reward), selection, concurrency, lambda _: live.advance(), journal
            )
            sampled = run_interruptible(sampling)
            if sampled.rows:
                write_traces(out, sampled.rows)
    except Interrupted:
        console.print("interrupted; run the same command again to resume", soft_wrap=True)
        raise
    if not sampled.rows:
        raise NothingMade(
            f"none of {len(loaded) * samples:,} episodes was good enough; lower --min-reward, raise --samples, "
            "or start with: sleuth traces gold"
        )
    _print_sampled(console, out, sampled)


def _load_sampler(
    source: str, endpoint: "Endpoint | None", questions: Path, index: str | None, settings: list[str]
) -> "tuple[ConfiguredRunner, Config, object, int]":
    """Load the agent with its config, what identifies its weights, and the number of episodes in flight."""
    from sleuth.agent.loading import AgentOptions, describe_remote_agent, load_agent
    from sleuth.runs.checksums import folder_stamp

    if endpoint is None:
        agent, config, weights = load_agent(source, questions, index, settings)
        return agent, config, folder_stamp(weights), config.concurrency
    remote = describe_remote_agent(endpoint, AgentOptions(tuple(settings), index), questions)
    return remote.load(), remote.config, remote.stamp(), remote.concurrency


def _print_sampled(console: Console, out: Path, sampled: "SampledTraces") -> None:
    table = Table(title="Traces kept per set", title_justify="left", box=SIMPLE_HEAD)
    for column in ("set", "questions", "solved", "traces", "unusable episodes"):
        table.add_column(column, no_wrap=True)
    for source in sampled.counts["asked"]:
        table.add_row(source, *(f"{each[source]:,}" for each in sampled.counts.values()))
    console.print(table)
    console.print(f"wrote {out}: {len(sampled.rows):,} traces", soft_wrap=True)
    _print_next(console, out)

"""sleuth traces answers: gold answers in the form of a method of one turn, for a baseline that has learned it too."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sleuth.cli.options import MAX_HITS, MAX_INT, MAX_SEED
from sleuth.cli.progress import TrainingProgress
from sleuth.cli.terminal import Terminal
from sleuth.config.agent import SINGLE, UNSEARCHED, AgentConfig
from sleuth.config.retrieval import RetrievalConfig
from sleuth.errors import ConfigError, InputError
from sleuth.runs.atomic import require_new

if TYPE_CHECKING:
    from sleuth.records import Question
    from sleuth.sft.gold import GoldAnswerWriter


def answers(
    questions: Annotated[Path, typer.Option(help="a questions file")],
    out: Annotated[Path, typer.Option(help="the trace file to write (.jsonl or .jsonl.gz); it must not exist")],
    method: Annotated[str, typer.Option(help="direct, cot or rag, as agent.method of a recipe")] = "rag",
    index: Annotated[
        str | None, typer.Option(help="with rag: what is searched, an index folder, an address, or web:PROVIDER")
    ] = None,
    k: Annotated[
        int, typer.Option(min=1, max=MAX_HITS, help="with rag: documents shown, as retrieval.k")
    ] = RetrievalConfig().k,
    prompt: Annotated[
        str | None, typer.Option(help="the prompt, as agent.prompt of a recipe; default: that of the method")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=MAX_INT, help="questions at most, the first of the file")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="of the wording")] = 0,
) -> None:
    """Gold answers as direct, cot or rag would give them, with the documents of the search: traces for RAG-SFT."""
    require_new(out)
    if not out.name.endswith((".jsonl", ".jsonl.gz")):
        raise InputError(f"--out {out} is no name of a trace file; it must end in .jsonl or .jsonl.gz")
    if method not in SINGLE:
        raise ConfigError(
            f"--method {method} is none of {', '.join(SINGLE)}; for searching there is: sleuth traces gold"
        )
    if (index is None) != (method in UNSEARCHED):
        raise ConfigError("--method rag needs an --index to search, and the other methods search nothing")
    from sleuth.agent import methods
    from sleuth.agent import protocol as protocols
    from sleuth.corpus.questions import load
    from sleuth.retrieval.backends import open_backend, require_ready
    from sleuth.sft.gold import GoldAnswerWriter
    from sleuth.sft.traces import write_traces

    config = AgentConfig(method=method, prompt=prompt)
    methods.make_method(config)
    given = load(questions)[:limit]
    asked = [question for question in given if question.answerable is not False]
    require_ready(index)
    retriever = None if index is None else open_backend(index)
    writer = GoldAnswerWriter(retriever, k, protocols.make_protocol(config.protocol), config.template, seed)
    console = Terminal(stderr=True, markup=False, highlight=False)
    with TrainingProgress(console) as live:
        rows = asyncio.run(_written(writer, asked, live))
    write_traces(out, rows)
    console.print(f"wrote {out}: {len(rows):,} answers", soft_wrap=True)
    if index is not None:
        console.print(f"of which {sum(row['found'] for row in rows):,} stand in what was found", soft_wrap=True)
    if len(asked) < len(given):
        console.print(f"left out: {len(given) - len(asked):,} not answerable", soft_wrap=True)
    console.print(f"learn it     sleuth sft --model FOLDER --traces {out} --out NEW-FOLDER", soft_wrap=True)


async def _written(writer: "GoldAnswerWriter", asked: "list[Question]", live: TrainingProgress) -> list[dict[str, Any]]:
    live.begin("writing answers", len(asked))
    rows: list[dict[str, Any]] = []
    async for row in writer.rows(asked):
        live.advance()
        rows.append(row)
    return rows

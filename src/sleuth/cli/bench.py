"""sleuth bench: speed, measured beside peers in one run."""

from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer

from sleuth.cli.bench_engine import engine
from sleuth.cli.bench_evaluate import evaluate
from sleuth.cli.bench_step import step
from sleuth.cli.bench_train import train
from sleuth.cli.options import MAX_HITS, MAX_INT, MAX_ITEMS
from sleuth.cli.terminal import echo
from sleuth.errors import InputError

app = typer.Typer(no_args_is_help=True, help="Measure speed, beside peers and in one run.")
for _command in (engine, train, step, evaluate):
    app.command()(_command)


class Part(StrEnum):
    """What is measured."""

    WORDS = "words"
    VECTORS = "vectors"
    SERVER = "server"


@app.command()
def retrieval(
    part: Annotated[
        list[Part] | None,
        typer.Option(
            help="words: BM25 beside bm25s; vectors: exact search beside matrix product and top-k; "
            "server: ours beside one request at a time; give it again for more",
            show_default="all",
        ),
    ] = None,
    corpus: Annotated[Path | None, typer.Option(help="what to index; default: a generated encyclopedia")] = None,
    questions: Annotated[list[Path] | None, typer.Option(help="questions to search for, with --corpus")] = None,
    passages: Annotated[int, typer.Option(min=100, max=1_000_000, help="of the generated encyclopedia")] = 100_000,
    rows: Annotated[
        int | None, typer.Option(min=1, max=MAX_INT, help="vectors; default: wiki-18's on a GPU, 200,000 else")
    ] = None,
    dimensions: Annotated[int, typer.Option(min=1, max=MAX_ITEMS, help="of a vector")] = 768,
    k: Annotated[int, typer.Option(min=1, max=MAX_HITS, help="hits a query")] = 3,
    kind: Annotated[Literal["bm25", "dense", "hybrid"], typer.Option(help="of the index that is served")] = "bm25",
    clients: Annotated[int, typer.Option(min=1, max=MAX_ITEMS, help="of the server, at the same time")] = 256,
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="of load on each server")] = 60.0,
) -> None:
    """Measure search: words, vectors and the server, each beside a peer; tables are Markdown."""
    if (corpus is None) != (not questions):
        raise InputError("--corpus and --questions belong together; give both, or neither for a generated encyclopedia")
    from sleuth.bench.measurement import describe_machine
    from sleuth.bench.retrieval import bm25_table, dense_table, server_table
    from sleuth.cli.terminal import silence_transformers

    silence_transformers()
    echo(f"{describe_machine()}\n")
    with TemporaryDirectory() as scratch:
        for each in part or Part:
            match each:
                case Part.WORDS:
                    table = bm25_table(*_material(corpus, questions or [], passages, Path(scratch)), k)
                case Part.VECTORS:
                    table = dense_table(rows, dimensions, k)
                case Part.SERVER:
                    material = _material(corpus, questions or [], passages, Path(scratch))
                    table = server_table(*material, kind, clients, seconds, Path(scratch) / "index")
            echo(f"{table.markdown()}\n")


def _material(corpus: Path | None, questions: list[Path], passages: int, scratch: Path) -> tuple[Path, list[str]]:
    """What is searched, as a plain corpus, and what is asked: the user's own, or a generated world."""
    from sleuth.corpus import sources
    from sleuth.corpus.questions import CORPUS, TEST, load
    from sleuth.synthesis.world.world import World, write_world

    if corpus is not None:
        asked = [question.question for path in questions for question in load(path)]
        return sources.plain_corpus(corpus, scratch).path, asked
    world = scratch / "world"
    if not world.exists():
        write_world(World(passages, 0), world, 1, 2000)
    return world / CORPUS, [question.question for question in load(world / TEST)]

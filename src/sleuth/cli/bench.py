"""sleuth bench: speed, measured beside peers in one run."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sleuth.errors import InputError

if TYPE_CHECKING:
    from sleuth.bench.table import Table

app = typer.Typer(no_args_is_help=True, help="Measure speed, beside peers and in one run.")

WIKI18 = 21_015_324


@app.callback()
def _group() -> None:
    """Keeps `retrieval` a command of its own while it is the only one."""


@app.command()
def retrieval(
    part: Annotated[
        list[Literal["words", "vectors", "server"]] | None,
        typer.Option(help="words: BM25 beside bm25s; vectors: exact search beside matrix product and top-k; "
        "server: ours beside one request at a time; give it again for more", show_default="all"),
    ] = None,
    corpus: Annotated[Path | None, typer.Option(help="what to index; default: a generated encyclopedia")] = None,
    questions: Annotated[list[Path] | None, typer.Option(help="questions to search for, with --corpus")] = None,
    passages: Annotated[int, typer.Option(min=100, max=1_000_000, help="of the generated encyclopedia")] = 100_000,
    rows: Annotated[int | None, typer.Option(min=1, help="vectors; default: wiki-18 on a GPU, 200,000 on a CPU")] = None,
    dimensions: Annotated[int, typer.Option(min=1, help="of a vector")] = 768,
    k: Annotated[int, typer.Option(min=1, help="hits a query")] = 3,
    clients: Annotated[int, typer.Option(min=1, help="of the server, at the same time")] = 256,
    seconds: Annotated[float, typer.Option(min=1, help="of load on each server")] = 60.0,
) -> None:
    """Measure search: words, vectors and the server, each beside a peer. Tables are Markdown."""
    if (corpus is None) != (not questions):
        raise InputError("--corpus and --questions belong together; give both, or neither for a generated encyclopedia")
    from sleuth.bench.table import machine
    from sleuth.cli.quiet import quiet

    quiet()
    typer.echo(f"{machine()}\n")
    wanted = part or ["words", "vectors", "server"]
    with TemporaryDirectory() as scratch:
        if set(wanted) & {"words", "server"}:
            plain, asked = _material(corpus, questions or [], passages, Path(scratch))
        for each in wanted:
            match each:
                case "words":
                    tables = _words(plain, asked, k)
                case "vectors":
                    tables = [_vectors(rows, dimensions, k)]
                case "server":
                    tables = [_server(plain, asked, clients, seconds, Path(scratch))]
            for table in tables:
                typer.echo(f"{table.markdown()}\n")

"""sleuth index: a corpus made searchable."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(no_args_is_help=True, help="Build search indexes, and look at them.")


@app.command()
def build(
    corpus: Annotated[Path, typer.Argument(help="passages as JSONL with id and contents, plain or .gz")],
    out: Annotated[Path, typer.Option(help="the folder to write; it must not exist")],
    k1: Annotated[float, typer.Option(min=0.0, help="BM25 term saturation")] = 0.9,
    b: Annotated[float, typer.Option(min=0.0, max=1.0, help="BM25 length normalisation")] = 0.4,
) -> None:
    """Index a corpus for BM25 search."""
    from sleuth.retrieval import index

    with _progress() as report:
        manifest = index.build(corpus, out, k1, b, report)
    typer.echo(f"{out}: {manifest.passages:,} passages, {manifest.counts['terms']:,} terms")


@app.command("info")
def describe(folder: Annotated[Path, typer.Argument(help="an index folder")]) -> None:
    """Print what an index was built from, how and by which versions."""
    from sleuth.retrieval.manifest import read

    manifest = read(folder)
    table = Table(box=None, show_header=False, pad_edge=False)
    rows: dict[str, object] = {
        "kind": manifest.kind,
        "passages": f"{manifest.passages:,}",
        **{name: f"{count:,}" for name, count in manifest.counts.items()},
        **manifest.settings,
        "corpus": f"{manifest.corpus.path} ({manifest.corpus.bytes:,} bytes)",
        "sha256": manifest.corpus.sha256,
        "on disk": f"{sum(file.stat().st_size for file in folder.rglob('*') if file.is_file()):,} bytes",
        "built by": ", ".join(f"{name} {version}" for name, version in manifest.libraries.items()),
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    Console(soft_wrap=True, markup=False).print(table)


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """A live line on stderr with the passages read and their rate."""
    began = monotonic()
    with Console(stderr=True).status("indexing") as line:
        yield lambda count: line.update(f"indexing: {count:,} passages, {count / (monotonic() - began):,.0f} a second")

"""sleuth world: the generated encyclopedia, written as corpus and question files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from sleuth.corpus.world.census import LARGEST, SMALLEST
from sleuth.corpus.world.folder import write
from sleuth.corpus.world.world import World

PATIENCE = 2.0  # seconds of silence before a bar appears

app = typer.Typer(no_args_is_help=True, help="Generate an encyclopedia of fictional entities, with questions about it.")


@app.callback()
def world() -> None:
    """Generate an encyclopedia of fictional entities, with questions about it."""


@app.command()
def make(
    out: Annotated[Path, typer.Option(help="the folder to write; it must not exist")],
    passages: Annotated[int, typer.Option(min=SMALLEST, max=LARGEST, help="passages, one an entity")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="the same seed gives the same world")] = 0,
    train: Annotated[int, typer.Option(min=1, help="training questions")] = 4000,
    test: Annotated[int, typer.Option(min=1, help="questions about held-out entities")] = 500,
) -> None:
    """Write corpus.jsonl, questions.train.jsonl, questions.test.jsonl and manifest.json."""
    with _progress(passages + train + test) as bar:
        manifest = write(World(passages, seed), out, train, test, bar.advance)
    _report(out, manifest)


def _report(folder: Path, manifest: dict[str, Any]) -> None:
    for name, file in manifest["files"].items():
        typer.echo(f"{file['rows']:>9,}  {folder / name}")
    typer.echo(f"           {folder / 'manifest.json'}")


class _Bar:
    """Counts rows, and shows them once the work has taken more than a moment."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True)
        self._progress = Progress(console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("writing the world", total=total)
        self._shown_from = monotonic() + PATIENCE
        self._pending = 0

    def advance(self) -> None:
        self._pending += 1
        if self._pending == 1000:
            self._progress.advance(self._task, self._pending)
            self._pending = 0
            if monotonic() > self._shown_from:
                self._progress.start()

    def close(self) -> None:
        self._progress.stop()


@contextmanager
def _progress(total: int) -> Iterator[_Bar]:
    bar = _Bar(total)
    try:
        yield bar
    finally:
        bar.close()

"""sleuth world: write a generated encyclopedia as corpus and question files."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from sleuth.cli.options import MAX_ITEMS, MAX_SEED
from sleuth.cli.terminal import Terminal, echo
from sleuth.synthesis.world.schema import MAX_PASSAGES, MIN_PASSAGES
from sleuth.synthesis.world.world import World, write_world

UPDATE_EVERY = 1000  # rows: an update of the bar costs more than a row

app = typer.Typer(no_args_is_help=True, help="Generate an encyclopedia of fictional entities, with questions about it.")


@app.callback()
def world() -> None:
    """Generate an encyclopedia of fictional entities, with questions about it."""


@app.command()
def make(
    out: Annotated[Path, typer.Option(help="Output folder; it must not exist.")],
    passages: Annotated[
        int, typer.Option(min=MIN_PASSAGES, max=MAX_PASSAGES, help="Number of passages, one per entity.")
    ] = 2000,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the world.")] = 0,
    train: Annotated[int, typer.Option(min=1, max=MAX_ITEMS, help="Number of training questions.")] = 4000,
    test: Annotated[int, typer.Option(min=1, max=MAX_ITEMS, help="Number of questions about held-out entities.")] = 500,
) -> None:
    """Write corpus.jsonl, questions.train.jsonl, questions.test.jsonl and manifest.json."""
    with _progress(passages + train + test) as advance:
        manifest = write_world(World(passages, seed), out, train, test, advance)
    _report(out, manifest)


def _report(folder: Path, manifest: dict[str, Any]) -> None:
    for name, file in manifest["files"].items():
        echo(f"{file['rows']:>9,}  {folder / name}")
    echo(f"           {folder / 'manifest.json'}")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    console = Terminal(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("writing the world", total=total)
        rows = count(1)

        def advance() -> None:
            if next(rows) % UPDATE_EVERY == 0:
                progress.advance(task, UPDATE_EVERY)

        yield advance

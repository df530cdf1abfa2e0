"""sleuth search: one query, its hits."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from sleuth.errors import SearchUnavailable, UserError
from sleuth.records import Hit


def search(
    index: Annotated[Path, typer.Argument(help="an index folder")],
    query: Annotated[str, typer.Argument(help="what to look for")],
    k: Annotated[int, typer.Option(min=1, help="hits at most")] = 3,
) -> None:
    """Search an index and print the passages found, best first."""
    from sleuth.retrieval.index import load

    (found,) = asyncio.run(load(index).search([query], k))
    if isinstance(found, SearchUnavailable):
        raise UserError(str(found))
    console = Console(highlight=False)
    for rank, hit in enumerate(found, 1):
        _show(console, rank, hit)
    if not found:
        console.print("nothing found")


def _show(console: Console, rank: int, hit: Hit) -> None:
    console.print(
        Text.assemble(f"{rank}. ", (hit.passage.title, "bold"), (f"  {hit.score:.3f}  {hit.passage.id}", "dim"))
    )
    if hit.passage.text:
        console.print(Padding(Text(hit.passage.text), (0, 0, 0, 3)))

"""sleuth search: search from the command line."""

from typing import Annotated

from rich.padding import Padding
from rich.text import Text
from typer import Argument, Option

from sleuth.cli.options import MAX_HITS, IndexDevice, SearchIndex
from sleuth.cli.terminal import Terminal
from sleuth.errors import InputError, SearchUnavailable, UserError


def search(
    index: SearchIndex,
    query: Annotated[str, Argument(help="The query.")],
    k: Annotated[int, Option(min=1, max=MAX_HITS, help="Maximum number of hits.")] = 3,
    token_env: Annotated[str | None, Option(metavar="NAME", help="Variable of the server's bearer token.")] = None,
    device: IndexDevice = None,
) -> None:
    """Search an index, a server or the web, and print the hits, best first."""
    if not query.strip():
        raise InputError("the query is empty; give some text")
    from sleuth.api.index import Index

    try:
        found = Index.open(index, device=device, token_env=token_env).search(query, k)
    except SearchUnavailable as failure:
        raise UserError(str(failure)) from failure
    console = Terminal(highlight=False)
    for rank, hit in enumerate(found, 1):
        score = (f"  {hit.score:.3f}  {hit.passage.id}", "dim")
        console.print(Text.assemble(f"{rank}. ", (hit.passage.title, "bold"), score))
        if hit.passage.text:
            console.print(Padding(Text(hit.passage.text), (0, 0, 0, 3)))
    if not found:
        console.print("nothing found")

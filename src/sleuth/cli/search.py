"""sleuth search: search from the command line."""

import asyncio
from typing import Annotated

from rich.padding import Padding
from rich.text import Text
from typer import Argument, Option

from sleuth.cli.options import MAX_HITS, IndexDevice, SearchIndex
from sleuth.cli.terminal import Terminal
from sleuth.errors import ConfigError, InputError, SearchUnavailable, UserError

TIMEOUT = 2.0  # seconds to wait for a server; short, because a person is waiting


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
    from sleuth.config.retrieval import RetrievalConfig, ServiceConfig, backend_of
    from sleuth.retrieval.backends import open_backend, require_ready

    if token_env is not None and backend_of(index) != "server":
        raise ConfigError(f"--token-env has no effect with {index}, which is not a server; remove it")
    if device is not None and not RetrievalConfig(index=index).local:
        raise ConfigError(f"--device has no effect with {index}, which is not an index folder; remove it")
    service = ServiceConfig(token_env=token_env)
    require_ready(index, service, timeout=TIMEOUT)
    retriever = open_backend(index, service, device or "auto")
    (found,) = asyncio.run(retriever.search([query], k))
    if isinstance(found, SearchUnavailable):
        raise UserError(str(found))
    console = Terminal(highlight=False)
    for rank, hit in enumerate(found, 1):
        score = (f"  {hit.score:.3f}  {hit.passage.id}", "dim")
        console.print(Text.assemble(f"{rank}. ", (hit.passage.title, "bold"), score))
        if hit.passage.text:
            console.print(Padding(Text(hit.passage.text), (0, 0, 0, 3)))
    if not found:
        console.print("nothing found")

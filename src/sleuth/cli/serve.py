"""sleuth serve: parts of the system as services."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.cli.options import MAX_INT
from sleuth.cli.serve_agent import agent
from sleuth.cli.serve_mcp import mcp
from sleuth.cli.terminal import echo
from sleuth.credentials import token_from_env

if TYPE_CHECKING:
    from sleuth.corpus.pages import PageStore

app = typer.Typer(no_args_is_help=True, help="Serve an agent or a search engine to others.")
app.command()(agent)
app.command()(mcp)


@app.command()
def retriever(
    index: Annotated[Path, typer.Argument(help="an index folder, made by: sleuth index build")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 finds a free one, which is printed")] = 8000,
    host: Annotated[str, typer.Option(help="the address to listen on; 0.0.0.0 lets other machines in")] = "127.0.0.1",
    k: Annotated[int, typer.Option(min=1, max=1000, help="hits a query, where the client does not say")] = 3,
    rerank: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="a cross-encoder that orders the best hits anew", show_default="none"),
    ] = None,
    device: Annotated[str, typer.Option(help="where vectors are searched: auto, cpu, cuda, cuda:1, ...")] = "auto",
    cache: Annotated[int, typer.Option(min=0, max=MAX_INT, help="searches whose hits are kept, the last ones")] = 0,
    pages: Annotated[
        Path | None, typer.Option(help="whole pages for /access: JSONL with url and contents", show_default="none")
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="the environment variable that holds the bearer token", show_default="open"),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="a name this machine is called by; again for each", show_default="none"),
    ] = None,
    address_dir: Annotated[
        Path | None,
        typer.Option(help="a folder to write ip:port to while serving, for ASearcher's clients", show_default="none"),
    ] = None,
) -> None:
    """Serve an index over HTTP: to Sleuth, and to clients of Search-R1, verl, slime, RLinf, Agent Lightning, ASearcher.

    POST /retrieve {"queries": ["..."], "topk": 3, "return_scores": true} gives passages, POST /access pages;
    /docs shows both in a browser, /readyz what is served, /metrics figures for Prometheus. Ctrl-C and SIGTERM finish
    what was accepted, then end the server.
    """
    token = token_from_env(token_env)

    from sleuth.http.middleware import server_names
    from sleuth.http.server import authority, bind, serve
    from sleuth.retrieval.index import load
    from sleuth.retrieval.manifest import read
    from sleuth.retrieval.service.server import Facts, advertise, application

    with ExitStack() as open_until_the_end:
        listener = open_until_the_end.enter_context(bind(host, port))
        manifest = read(index)
        facts = Facts(str(index), manifest.kind, manifest.passages)
        loaded = load(index, device=device, rerank=rerank)
        names = server_names(host, allow_host or ())
        served = application(loaded, facts, k=k, pages=_pages(pages), token=token, cache=cache, names=names)

        def ready() -> None:
            chosen = listener.getsockname()[1]
            if address_dir:
                open_until_the_end.enter_context(advertise(address_dir, host, chosen))
            at = f"http://{authority(host, chosen)}"
            echo(f"serving {index} at {at} ({facts.kind}, {facts.passages:,} passages); stop with Ctrl-C")

        serve(served, listener, ready)


def _pages(path: Path | None) -> "PageStore | None":
    if path is None:
        return None
    from sleuth.cli.progress import StageProgress
    from sleuth.corpus.pages import PageStore

    with StageProgress() as meter:
        return PageStore(path, meter)

"""sleuth serve mcp: the search for agents that speak the Model Context Protocol."""

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.cli.terminal import echo
from sleuth.credentials import token_from_env
from sleuth.errors import ConfigError

if TYPE_CHECKING:
    from sleuth.serve.library import Library

ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]]*):)?(?P<port>\d{1,5})")


def mcp(
    index: Annotated[
        str,
        typer.Argument(
            help="an index folder, the address of a retrieval server, web:PROVIDER, or import:package.function"
        ),
    ],
    http: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT", help="serve over HTTP there; port 0 finds a free one", show_default="stdio"
        ),
    ] = None,
    k: Annotated[int, typer.Option(min=1, max=100, help="passages a query, where the client does not say")] = 5,
    pages: Annotated[
        Path | None, typer.Option(help="whole pages for fetch: JSONL with url and contents", show_default="none")
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="with --http: the environment variable that holds the bearer token",
            show_default="open",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="with --http: a name this machine is called by; again for each", show_default="none"
        ),
    ] = None,
    index_token_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="with an address as INDEX: the environment variable with its bearer token"),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="where an index folder is searched: auto, cpu, cuda, cuda:0; default: auto")
    ] = None,
) -> None:
    """Serve a search to agents over the Model Context Protocol, on stdin and stdout or over HTTP.

    Claude, Cursor, VS Code and others start this command themselves; docs/mcp.md has what to write into their settings.
    """
    from sleuth.config.retrieval import RetrievalConfig, backend_of

    for option, value, useful, needed in (
        ("--token-env", token_env, http is not None, "--http"),
        ("--allow-host", allow_host, http is not None, "--http"),
        ("--index-token-env", index_token_env, backend_of(index) == "server", "the address of a server as INDEX"),
        ("--device", device, RetrievalConfig(index=index).local, "an index folder"),
    ):
        if value is not None and not useful:
            raise ConfigError(f"{option} has no effect without {needed}; remove it")
    place, token = None if http is None else _place(http), token_from_env(token_env)

    def library() -> "Library":
        from sleuth.serve.library import open_library

        return open_library(index, pages=pages, token_env=index_token_env, device=device or "auto")

    if place is None:
        _speak(library, Path(index).name, k)
    else:
        _serve(library, index, k, place, token, allow_host or ())


def _speak(library: Callable[[], "Library"], name: str, k: int) -> None:
    # What a library prints while it loads must not be taken for a message of the protocol.
    with redirect_stdout(sys.stderr):
        from sleuth.serve.mcp import serve_stdio

        opened = library()
    serve_stdio(opened, name, k)


def _serve(
    library: Callable[[], "Library"],
    index: str,
    k: int,
    place: tuple[str, int],
    token: str | None,
    names: Sequence[str],
) -> None:
    from sleuth.http.middleware import LOOPBACK, BearerAuth, server_names
    from sleuth.http.server import authority, bind, serve
    from sleuth.serve.mcp import PATH, application

    with bind(*place) as listener:
        known = authority(place[0], listener.getsockname()[1])
        app = application(library(), Path(index).name, k, [*LOOPBACK, *server_names(place[0], names)])
        said = f"serving {index} at http://{known}{PATH}; stop with Ctrl-C"
        serve(BearerAuth(app, token) if token else app, listener, lambda: echo(said), lifespan="on")


def _place(address: str) -> tuple[str, int]:
    """Host and port of an address, of which the host may be left out: then only this machine is served."""
    read = ADDRESS.fullmatch(address)
    if read is None or int(read["port"]) > 65535:
        raise ConfigError(f"--http is {address!r}; expected a port or HOST:PORT, such as 8080 or 0.0.0.0:8080")
    return (read["host"] or "127.0.0.1").strip("[]"), int(read["port"])

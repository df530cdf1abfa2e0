"""sleuth view: the web viewer of runs and evaluations."""

import os
import sys
import webbrowser
from pathlib import Path
from shlex import quote
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.cli.terminal import echo
from sleuth.errors import InputError

if TYPE_CHECKING:
    from sleuth.view.api import Api

DEFAULTS = (Path("runs"), Path("evaluations"))


def view(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUNS",
            help="Run and evaluation folders, or folders that contain them.",
            show_default="runs and evaluations",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one and prints it.")] = 8090,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 accepts other machines.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name of this machine to accept; repeatable.", show_default="none"),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Model folder whose tokenizer.json decodes runs without a tokenizer.", show_default="none"),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="Cache folder for trajectory indexes.", show_default="~/.cache/sleuth/view"),
    ] = None,
) -> None:
    """Show runs and evaluations in a browser: curves, token-level trajectories and comparisons, updated live.

    The viewer reads only these folders and writes nothing in them. It serves this machine only, unless --host says
    otherwise. There is no password: to view a remote machine, use ssh -L. Stop it with Ctrl-C.
    """
    shown = _default_folders(folders)
    api = _api(shown, tokenizer, cache or _cache())

    from sleuth.http.middleware import LOOPBACK, server_names
    from sleuth.http.server import authority, bind, serve
    from sleuth.view.server import application

    listener = bind(host, port)
    served = application(api, names=server_names(host, allow_host or ()))

    def ready() -> None:
        address = f"http://{authority(host, listener.getsockname()[1])}/"
        echo(f"viewing {_describe_counts(api)} at {address}; stop with Ctrl-C")
        if api.library.counts() == (0, 0):
            echo(_empty_hint(shown))
        if host not in LOOPBACK:
            echo("anyone who can reach this address can read these folders", err=True)
        if open_page and _has_display():
            # In a thread: starting a browser may take seconds, and the page must already be served.
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    with listener:
        serve(served, listener, ready, shutdown_seconds=2)


def _default_folders(folders: list[Path] | None) -> list[Path]:
    if folders:
        return folders
    found = [folder for folder in DEFAULTS if folder.is_dir()]
    if not found:
        raise InputError(
            "there is no folder runs or evaluations here; start a run with sleuth train, or name one: sleuth view RUNS"
        )
    return found


def _api(folders: list[Path], tokenizer: Path | None, cache: Path) -> "Api":
    from sleuth.evaluate.comparison import compare_folders
    from sleuth.evaluate.results import COUNTS, MEASURES
    from sleuth.view.api import Api
    from sleuth.view.comparison import ComparisonCache
    from sleuth.view.library import Library, make_roots
    from sleuth.view.trajectory import TokenizerCache, tokenizer_folder

    library = Library(make_roots(folders))
    broken = library.scan()
    if broken and library.counts() == (0, 0):
        raise InputError("; ".join(str(each["detail"]) for each in broken[:3]))
    comparisons = ComparisonCache(compare_folders, MEASURES, [name for name in MEASURES if name in COUNTS])
    tokenizers = TokenizerCache(None if tokenizer is None else tokenizer_folder(tokenizer))
    return Api(library, comparisons, tokenizers, cache)


def _empty_hint(folders: list[Path]) -> str:
    return (
        f"no runs in {', '.join(map(str, folders))} yet; new ones appear as they start, for example: "
        f"sleuth train quickstart --out {quote(str(folders[0] / 'quickstart-1'))}"
    )


def _describe_counts(api: "Api") -> str:
    runs, evaluations = api.library.counts()
    return f"{runs} run{'s' * (runs != 1)} and {evaluations} evaluation{'s' * (evaluations != 1)}"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sleuth" / "view"


def _has_display() -> bool:
    """Without a display, a text browser would take over the terminal."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))

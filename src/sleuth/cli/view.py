"""sleuth view: runs and evaluations in a browser."""

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
            help="folders of runs and evaluations, or folders that hold some",
            show_default="runs and evaluations",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 finds a free one, which is printed")] = 8090,
    host: Annotated[str, typer.Option(help="the address to listen on; 0.0.0.0 lets other machines in")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="a name of this machine under which browsers may ask", show_default="none"),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="open the page in a browser here")] = True,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="a model's folder whose tokenizer.json reads tokens that come with none", show_default="none"
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="where indexes of trajectories are kept between two starts", show_default="~/.cache/sleuth/view"
        ),
    ] = None,
) -> None:
    """Show runs and evaluations in a browser: curves, trajectories token by token, comparisons; live while they write.

    A folder without a run is watched until one begins. Nothing outside of the folders is read and nothing in them is
    written. Only this machine is let in unless --host says otherwise; there is no password, so reach a remote one
    through ssh -L. Ctrl-C ends it.
    """
    given = _given(folders)
    api = _api(given, tokenizer, cache or _cache())

    from sleuth.http.middleware import LOOPBACK, server_names
    from sleuth.http.server import authority, bind, serve
    from sleuth.view.server import application

    listener = bind(host, port)
    served = application(api, names=server_names(host, allow_host or ()))

    def ready() -> None:
        address = f"http://{authority(host, listener.getsockname()[1])}/"
        echo(f"viewing {_counted(api)} at {address}; stop with Ctrl-C")
        if api.library.counts() == (0, 0):
            echo(_not_yet(given))
        if host not in LOOPBACK:
            echo("whoever can reach this address can read these folders", err=True)
        if open_page and _has_screen():
            # Starting a browser may take seconds, in which the page must already be served.
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    with listener:
        serve(served, listener, ready, shutdown_seconds=2)


def _given(folders: list[Path] | None) -> list[Path]:
    if folders:
        return folders
    found = [folder for folder in DEFAULTS if folder.is_dir()]
    if not found:
        raise InputError(
            "there is no folder runs or evaluations here; train with sleuth train, or name the folder: sleuth view RUNS"
        )
    return found


def _api(folders: list[Path], tokenizer: Path | None, cache: Path) -> "Api":
    from sleuth.evaluate.comparison import compare_folders
    from sleuth.evaluate.results import COUNTS, MEASURES
    from sleuth.view.api import Api
    from sleuth.view.comparison import ComparisonCache
    from sleuth.view.folders import make_roots
    from sleuth.view.library import Library
    from sleuth.view.tokenizer_cache import TokenizerCache, tokenizer_folder

    library = Library(make_roots(folders))
    broken = library.scan()
    if broken and library.counts() == (0, 0):
        raise InputError("; ".join(str(each["detail"]) for each in broken[:3]))
    comparisons = ComparisonCache(compare_folders, MEASURES, [name for name in MEASURES if name in COUNTS])
    tokenizers = TokenizerCache(None if tokenizer is None else tokenizer_folder(tokenizer))
    return Api(library, comparisons, tokenizers, cache)


def _not_yet(folders: list[Path]) -> str:
    """What to do where nothing is there to be shown."""
    return (
        f"no run is in {', '.join(map(str, folders))} yet, and what begins there is shown; "
        f"this makes one: sleuth train quickstart --out {quote(str(folders[0] / 'quickstart-1'))}"
    )


def _counted(api: "Api") -> str:
    runs, evaluations = api.library.counts()
    return f"{runs} run{'s' * (runs != 1)} and {evaluations} evaluation{'s' * (evaluations != 1)}"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sleuth" / "view"


def _has_screen() -> bool:
    """Without one a browser of text would take over the terminal."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))

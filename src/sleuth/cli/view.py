"""sleuth view: the web viewer of runs and evaluations."""

import os
import sys
import webbrowser
from pathlib import Path
from shlex import quote
from threading import Thread
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from sleuth.cli.options import AllowHost, Host, Port
from sleuth.cli.terminal import echo
from sleuth.errors import InputError

if TYPE_CHECKING:
    from sleuth.view.api import Api

FOLDERS_HELP = "Run and evaluation folders, or their parents. Default: runs and evaluations."
DEFAULTS = (Path("runs"), Path("evaluations"))


def view(
    folders: Annotated[list[Path] | None, Argument(metavar="RUNS", help=FOLDERS_HELP)] = None,
    port: Port = 8090,
    host: Host = "127.0.0.1",
    allow_host: AllowHost = None,
    open_page: Annotated[bool, Option("--open/--no-open", help="Open the page in a browser.")] = True,
    tokenizer: Annotated[Path | None, Option(help="Model folder with a tokenizer, for runs without one.")] = None,
    cache: Annotated[Path | None, Option(help="Index cache. Default: ~/.cache/sleuth/view.")] = None,
) -> None:
    """Show runs and evaluations in a browser: curves, token-level trajectories and comparisons, updated live.

    The viewer reads only these folders and writes nothing in them. It listens on this machine only, unless --host is
    given. There is no password: to view runs on a remote machine, use ssh -L. Stop the viewer with Ctrl-C.
    """
    shown = folders or [folder for folder in DEFAULTS if folder.is_dir()]
    if not shown:
        raise InputError(
            "there is no folder runs or evaluations here; start a run with sleuth train, or name one: sleuth view RUNS"
        )
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    api = _api(shown, tokenizer, cache or user_cache / "sleuth" / "view")

    from sleuth.http.middleware import LOOPBACK, server_names
    from sleuth.http.server import authority, bind, serve
    from sleuth.view.server import application

    listener = bind(host, port)
    served = application(api, names=server_names(host, allow_host or ()))

    def ready() -> None:
        address = f"http://{authority(host, listener.getsockname()[1])}/"
        runs, evaluations = api.library.counts()
        counts = f"{runs} run{'s' * (runs != 1)} and {evaluations} evaluation{'s' * (evaluations != 1)}"
        echo(f"viewing {counts} at {address}; stop with Ctrl-C")
        if not runs and not evaluations:
            echo(
                f"no runs in {', '.join(map(str, shown))} yet; new ones appear as they start, for example: "
                f"sleuth train quickstart --out {quote(str(shown[0] / 'quickstart-1'))}"
            )
        if host not in LOOPBACK:
            echo("anyone who can reach this address can read these folders", err=True)
        if open_page:
            open_browser(address)

    with listener:
        serve(served, listener, ready, shutdown_seconds=2)


def _api(folders: list[Path], tokenizer: Path | None, cache: Path) -> "Api":
    from sleuth.evaluate.comparison import compare_folders
    from sleuth.evaluate.results import COUNTS, MEASURES
    from sleuth.view.api import Api, ComparisonCache
    from sleuth.view.library import Library, make_roots
    from sleuth.view.trajectory import TokenizerCache, tokenizer_folder

    library = Library(make_roots(folders))
    broken = library.scan()
    if broken and library.counts() == (0, 0):
        raise InputError("; ".join(str(each["detail"]) for each in broken[:3]))
    comparisons = ComparisonCache(compare_folders, MEASURES, [name for name in MEASURES if name in COUNTS])
    tokenizers = TokenizerCache(None if tokenizer is None else tokenizer_folder(tokenizer))
    return Api(library, comparisons, tokenizers, cache)


def open_browser(address: str) -> None:
    """Open an address in a graphical browser, if there is one."""
    if _has_display():
        # In a thread: starting a browser may take seconds, and the page must already be served.
        Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def _has_display() -> bool:
    """Whether a graphical browser is available; a text browser would take over the terminal."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))

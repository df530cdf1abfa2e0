"""The command `sleuth`; commands import what is heavy when they run, so that help and errors come at once."""

import sys
import traceback
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from sleuth import __version__
from sleuth.cli import bench, data, index, serve, traces, world
from sleuth.cli.ask import ask
from sleuth.cli.coldstart import coldstart
from sleuth.cli.compare import compare
from sleuth.cli.doctor import doctor
from sleuth.cli.evaluate import evaluate
from sleuth.cli.export import export
from sleuth.cli.launch import BROKEN, end_with_launcher, leave, several, take_gpu
from sleuth.cli.search import search
from sleuth.cli.settings import knobs, settings
from sleuth.cli.sft import sft
from sleuth.cli.terminal import echo
from sleuth.cli.train import train
from sleuth.cli.view import view
from sleuth.credentials import redact
from sleuth.errors import TrainingStopped, UserError
from sleuth.model.memory import describe_out_of_memory

GROUPS: dict[str, typer.Typer] = {
    "world": world.app,
    "data": data.app,
    "index": index.app,
    "serve": serve.app,
    "traces": traces.app,
    "bench": bench.app,
}
COMMANDS: tuple[Callable[..., None], ...] = (
    train,
    sft,
    ask,
    evaluate,
    compare,
    view,
    export,
    search,
    doctor,
    settings,
    coldstart,
)

STOPPED = 1
USER_ERROR = 2
INTERRUPTED = 130
SMALLER = (
    "end what else runs there, or lower train.pack_tokens (of sft: --pack-tokens), engine.memory, engine.slots, "
    "train.questions or agent.context_tokens; "
    "a run that was saved goes on with: sleuth train --resume RUN"
)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)
for _command in COMMANDS:
    app.command()(_command)
app.command(hidden=True)(knobs)


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"sleuth {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Train language models to reason and to search."""


def main() -> None:
    """Runs the command line; what the user can put right is one line on stderr, never a traceback."""
    try:
        if several():
            end_with_launcher()
            take_gpu()
        app(prog_name="sleuth")
    except UserError as error:
        _leave(error, USER_ERROR)
    except TrainingStopped as error:
        _leave(error, STOPPED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if told := describe_out_of_memory(error):
            _leave(f"{told}; {SMALLER}", USER_ERROR)
        if not several():
            raise
        from sleuth.train.ranks import describe_disconnect

        if told := describe_disconnect(error):
            _leave(told, STOPPED)
        leave(traceback.format_exc(), BROKEN)


def _leave(error: Exception | str, code: int) -> NoReturn:
    leave(" ".join(["sleuth:", *redact(str(error)).splitlines()]), code)

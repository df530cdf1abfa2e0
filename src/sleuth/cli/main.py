"""The command `sleuth`; commands import heavy libraries only when they run, so that help and errors are fast."""

import sys
import traceback
from collections.abc import Callable
from typing import Annotated

import typer
from typer import Option

from sleuth import __version__
from sleuth.cli import bench, data, index, serve, traces
from sleuth.cli.ask import ask
from sleuth.cli.doctor import doctor
from sleuth.cli.evaluate import compare, evaluate
from sleuth.cli.export import export
from sleuth.cli.launch import INTERNAL_ERROR, exit_with, exit_with_launcher, is_launched, select_gpu
from sleuth.cli.megatron import import_
from sleuth.cli.plan import plan
from sleuth.cli.reproduce import reproduce
from sleuth.cli.search import search
from sleuth.cli.settings import settings
from sleuth.cli.sft import coldstart, sft
from sleuth.cli.simulate import simulate
from sleuth.cli.start import start
from sleuth.cli.terminal import echo
from sleuth.cli.train import train
from sleuth.cli.trial import try_
from sleuth.cli.view import view
from sleuth.cli.worker import worker
from sleuth.credentials import redact
from sleuth.errors import TrainingStopped, UserError
from sleuth.model.memory import describe_out_of_memory

GROUPS: dict[str, typer.Typer] = {
    "world": data.world_app,
    "data": data.app,
    "index": index.app,
    "serve": serve.app,
    "traces": traces.app,
    "bench": bench.app,
}
COMMANDS: tuple[Callable[..., None], ...] = (
    start, train, reproduce, plan, simulate, sft, ask, evaluate, compare, view, export, import_, search, doctor,
    settings, coldstart, worker, try_,
)  # fmt: skip

STOPPED = 1
INTERRUPTED = 130
OUT_OF_MEMORY_HINT = (
    "end other processes there, or lower train.pack_tokens (sft: --pack-tokens), engine.memory, engine.slots, "
    "train.questions or agent.context_tokens; resume a saved run with: sleuth train --resume RUN"
)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)
for _command in COMMANDS:
    app.command(_command.__name__.rstrip("_"))(_command)  # try and import are keywords


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"sleuth {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print version.")
    ] = False,
) -> None:
    """Train language models to reason and to search."""


def main() -> None:
    """Run the command line; errors that the user can fix are printed to stderr as one line, without a traceback."""
    try:
        exit_with_launcher()
        if is_launched():
            select_gpu()
        app(prog_name="sleuth")
    except (UserError, TrainingStopped) as error:
        line, code = str(error), error.exit_code if isinstance(error, UserError) else STOPPED
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if reason := describe_out_of_memory(error):
            line, code = f"{reason}; {OUT_OF_MEMORY_HINT}", UserError.exit_code
        elif not is_launched():
            raise
        else:
            from sleuth.train.ranks import describe_disconnect

            reason = describe_disconnect(error)
            if not reason:
                exit_with(traceback.format_exc(), INTERNAL_ERROR)
            line, code = reason, STOPPED
    else:
        return
    exit_with(" ".join(["sleuth:", *redact(line).splitlines()]), code)

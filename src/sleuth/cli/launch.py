"""A command in several processes: started together, and answered for as if they were one."""

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn
from uuid import uuid4

from sleuth.cli.terminal import echo
from sleuth.errors import ConfigError
from sleuth.runs.interruption import LAUNCHED

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

COMMAND = "from sleuth.cli.main import main; main()"
BROKEN = 1
# Where torchrun and `launch` look for what ended a process.
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
# Seconds in which the first rank can end as well: then it is the one to be heard, and has put its things in order.
GRACE = 5.0
# Seconds that ranks have to write a checkpoint after an interrupt, unless the user sets another number.
SAVING = "3600"


def rank() -> int:
    """The number of this process among those of a run."""
    return int(os.environ.get("RANK", "0"))


def several() -> bool:
    """Whether this process is one of several, whose end somebody is waiting for."""
    return ERROR_FILE in os.environ


def take_gpu() -> None:
    """Lets this process see its own GPU alone, so that no thread or library of it takes another's."""
    given, own = os.environ.get("CUDA_VISIBLE_DEVICES"), int(os.environ["LOCAL_RANK"])
    if given == "":
        return
    seen = given.split(",") if given else list(map(str, range(own + 1)))
    if own >= len(seen):
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES = {given} leaves process {own + 1} of this machine without a GPU; "
            f"start {len(seen)} at most"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = seen[own]


def end_with_launcher() -> None:
    """Ends this process when `sleuth train --nproc` has, even by kill -9: standard input is a pipe that it holds open.

    Not by PR_SET_PDEATHSIG, which only Linux has.
    """
    if LAUNCHED in os.environ:
        threading.Thread(target=_end_with_input, name="launcher", daemon=True).start()


def _end_with_input() -> None:
    os.read(0, 1)
    os._exit(BROKEN)


def leave(line: str, code: int) -> NoReturn:
    """Ends the process with a line on stderr; one of several leaves the line to whoever started them."""
    if not several():
        echo(line, err=True)
        sys.exit(code)
    now = time.time()
    Path(os.environ[ERROR_FILE]).write_text(json.dumps({"message": line, "timestamp": int(now), "at": now}))
    if rank() > 0:
        time.sleep(GRACE)
    sys.exit(code)


def launch(processes: int, words: Sequence[str]) -> None:
    """Runs `sleuth` with these words in as many processes; the first that fails ends them all, with its words."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Threads of one process on the cores of another cost both.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    # What went wrong is told once, below.
    logging.disable()
    received = _forwarding()
    kept_open = _share_input()
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        signals_to_handle="SIGHUP,SIGQUIT",
    )
    try:
        elastic_launch(settings, sys.executable)("-c", COMMAND, *words)
    except ChildFailedError as error:
        _answer(error.failures)
    except SignalException as error:
        sys.exit(128 + (received[0] if received else error.sigval))
    finally:
        os.close(kept_open)


def _forwarding() -> list[int]:
    """Makes the launcher forward SIGINT and SIGTERM as SIGINT, on which ranks save; the list tells what was received.

    A second signal makes torchrun's agent end the ranks by SIGTERM, which they do not handle.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException

    received: list[int] = []

    def forward(number: int, _: FrameType | None) -> NoReturn:
        received.append(number)
        raise SignalException(f"received signal {number}", signal.SIGINT)

    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SAVING)
    for each in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, forward)
    return received


def _share_input() -> int:
    """Gives the ranks a pipe as standard input; returns its other end, which closes with this process."""
    ours, kept_open = os.pipe()
    os.dup2(ours, 0)
    os.close(ours)
    os.environ[LAUNCHED] = "1"
    return kept_open


def _answer(failures: "Mapping[int, ProcessFailure]") -> NoReturn:
    """Prints what the first to fail said, and ends with its code."""
    number, first = min(failures.items(), key=lambda entry: (_order(entry[1].exitcode), _moment(entry[1])))
    if first.exitcode > 0 and isinstance(first.message, str):
        leave(first.message.rstrip(), first.exitcode)
    if first.exitcode in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        sys.exit(first.exitcode)  # the first rank has said how to resume
    killed = signal.Signals(-first.exitcode).name
    # NCCL aborts a process that waited too long for the others.
    look = "the lines above" if killed == "SIGABRT" else "whether its memory was used up"
    leave(f"sleuth: process {number} of the run was ended by {killed}; see {look}", BROKEN)


def _order(code: int) -> int:
    """Who is killed fails before those who miss it, and those before whom the launcher ends."""
    return {-signal.SIGTERM: 2}.get(code, int(code > 0))


def _moment(failure: "ProcessFailure") -> float:
    told = failure.error_file_data
    return float(told["at"]) if isinstance(told, dict) and "at" in told else float(failure.timestamp)

"""Multi-process commands: start the processes, forward signals, and exit like a single process."""

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
INTERNAL_ERROR = 1
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # set by torchrun and `launch`
GRACE = 5.0  # seconds that other ranks wait, so that an error of the first rank takes precedence
SAVE_SECONDS = "3600"  # time to write a checkpoint after an interrupt, unless the user sets the variable


def rank() -> int:
    """Return the rank of this process; 0 for a single process."""
    return int(os.environ.get("RANK", "0"))


def is_launched() -> bool:
    """Whether this process was started by `launch` or torchrun."""
    return ERROR_FILE in os.environ


def select_gpu() -> None:
    """Make only this rank's GPU visible, so that no library uses another GPU."""
    given, local_rank = os.environ.get("CUDA_VISIBLE_DEVICES"), int(os.environ["LOCAL_RANK"])
    if given == "":
        return
    visible = given.split(",") if given else list(map(str, range(local_rank + 1)))
    if local_rank >= len(visible):
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES = {given} has no GPU for process {local_rank + 1} of this machine; "
            f"start at most {len(visible)}"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[local_rank]


def exit_with_launcher() -> None:
    """Exit when the launcher exits, even after kill -9: its end of the standard-input pipe then closes.

    PR_SET_PDEATHSIG would work on Linux only.
    """

    def wait() -> None:
        os.read(0, 1)
        os._exit(INTERNAL_ERROR)

    if LAUNCHED in os.environ:
        threading.Thread(target=wait, name="launcher", daemon=True).start()


def exit_with(line: str, code: int) -> NoReturn:
    """Print an error and exit; a launched process passes the error to its launcher."""
    if not is_launched():
        echo(line, err=True)
        sys.exit(code)
    now = time.time()
    Path(os.environ[ERROR_FILE]).write_text(json.dumps({"message": line, "timestamp": int(now), "at": now}))
    if rank() > 0:
        time.sleep(GRACE)
    sys.exit(code)


def launch(processes: int, words: Sequence[str]) -> None:
    """Run `sleuth WORDS` in several processes; the first failure ends all of them and determines the exit code."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Do not oversubscribe the cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    logging.disable()  # errors are printed once, below
    received = _forward_signals()
    # The ranks read from a pipe; its other end closes with this process.
    read_end, write_end = os.pipe()
    os.dup2(read_end, 0)
    os.close(read_end)
    os.environ[LAUNCHED] = "1"
    config = LaunchConfig(
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
        elastic_launch(config, sys.executable)("-c", COMMAND, *words)
    except ChildFailedError as error:
        _exit_like_first(error.failures)
    except SignalException as error:
        sys.exit(128 + (received[0] if received else error.sigval))
    finally:
        os.close(write_end)


def _forward_signals() -> list[int]:
    """Forward SIGINT and SIGTERM to the ranks as SIGINT, on which they save; return a live list of received signals.

    After a second signal, torchrun's agent ends the ranks with SIGTERM, which they do not handle.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException

    received: list[int] = []

    def forward(number: int, _: FrameType | None) -> NoReturn:
        received.append(number)
        raise SignalException(f"received signal {number}", signal.SIGINT)

    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SAVE_SECONDS)
    for each in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, forward)
    return received


def _exit_like_first(failures: "Mapping[int, ProcessFailure]") -> NoReturn:
    """Exit with the error and code of the process that failed first."""
    number, first = min(failures.items(), key=lambda entry: _failure_order(entry[1]))
    if first.exitcode > 0 and isinstance(first.message, str):
        exit_with(first.message.rstrip(), first.exitcode)
    if first.exitcode in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        sys.exit(first.exitcode)  # the first rank has printed how to resume
    killed = signal.Signals(-first.exitcode).name
    # NCCL aborts a process that waited too long for the others.
    hint = "see the lines above" if killed == "SIGABRT" else "check whether the machine ran out of memory"
    exit_with(f"sleuth: process {number} was killed by {killed}; {hint}", INTERNAL_ERROR)


def _failure_order(failure: "ProcessFailure") -> tuple[int, float]:
    """Sort key: killed processes first, then failed processes, then those that the launcher terminated."""
    data = failure.error_file_data
    at = data["at"] if isinstance(data, dict) and "at" in data else failure.timestamp
    return {-signal.SIGTERM: 2}.get(failure.exitcode, int(failure.exitcode > 0)), float(at)

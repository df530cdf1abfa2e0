"""The process around a server of our own: when whoever started it is gone, however that came, so is the server.

    python -m sleuth.engines.vllm.guard COMMAND...

It waits for the end of its standard input, which its parent holds open.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

# Seconds a server has to end by itself.
GRACE = 15.0
NO_PROGRAM = 127


def guard(command: Sequence[str]) -> int:
    """Runs the command for as long as the input is open; how it ended, when nothing it started is left."""
    try:
        # A session of its own: its processes are ended as one.
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    except OSError as error:
        print(f"{command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return NO_PROGRAM
    threading.Thread(target=_end_with_input, args=(server.pid,), daemon=True).start()
    code = server.wait()
    _signal(server.pid, signal.SIGKILL)
    return code if code >= 0 else 128 - code


def _end_with_input(group: int) -> None:
    # Not by the buffer of Python, which no thread may hold when the interpreter ends.
    os.read(sys.stdin.fileno(), 1)
    _signal(group, signal.SIGTERM)
    time.sleep(GRACE)
    _signal(group, signal.SIGKILL)


def _signal(group: int, how: signal.Signals) -> None:
    try:
        os.killpg(group, how)
    except ProcessLookupError:
        return  # none is left


if __name__ == "__main__":
    sys.exit(guard(sys.argv[1:]))

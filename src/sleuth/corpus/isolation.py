"""Readers in a process of their own, with limits on memory and time, so that a hostile file stops no build."""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sleuth.corpus.content import Content
from sleuth.corpus.documents import read_content

MEMORY = 2 << 30  # bytes of address space
CPU_SECONDS, CPU_SECONDS_PER_MIB, MOST_CPU_SECONDS = 10, 30, 300
WAITING = 10  # times the limit on CPU time, after which a process that does nothing is stopped
LONGEST_TEXT = 64 << 20  # characters


class IsolatedReader:
    """Reads files in a child process, which is started on first use and replaced after a failure."""

    def __init__(self, memory: int = MEMORY, cpu_seconds: int = CPU_SECONDS) -> None:
        self._memory, self._cpu_seconds = memory, cpu_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "IsolatedReader":
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop()

    def read(self, path: Path) -> Content:
        """Read a file; raise ValueError with the reason if it cannot be read within the limits."""
        seconds = min(self._cpu_seconds + CPU_SECONDS_PER_MIB * (path.stat().st_size >> 20), MOST_CPU_SECONDS)
        process = self._process or self._start()
        request = json.dumps([os.fsencode(path.absolute()).hex(), seconds]).encode() + b"\n"
        answer = self._ask(process, request, seconds * WAITING)
        if answer is None:
            raise ValueError(self._stop(f"it took longer than {seconds} s to read"))
        if "reason" in answer:
            raise ValueError(answer["reason"])
        headings = {int(line): level for line, level in answer["headings"].items()}
        return Content(answer["title"], answer["text"], answer["url"], headings)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", __name__, str(self._memory)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        pipe = subprocess.PIPE
        # A separate process group keeps Ctrl-C from the child. Libraries print about files what the user cannot use.
        self._process = subprocess.Popen(  # noqa: S603
            command, bufsize=0, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment, process_group=0
        )
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], request: bytes, seconds: float) -> dict[str, Any] | None:
        """Send a request and return the answer; None if the process does not answer in time or ends."""
        deadline = time.monotonic() + seconds
        pieces: list[bytes] = []
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:
            return None
        try:
            stdin.write(request)
        except BrokenPipeError:
            return None
        while not pieces or not pieces[-1].endswith(b"\n"):
            if not select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            pieces.append(os.read(stdout.fileno(), 1 << 20))
            if not pieces[-1]:
                return None
        answer: dict[str, Any] = json.loads(b"".join(pieces))
        return answer

    def _stop(self, reason: str = "") -> str:
        """End the process; return why it ended, or `reason` if it had not."""
        process, self._process = self._process, None
        if process is None:
            return reason
        if process.stdin is not None:
            process.stdin.close()
        try:
            code = process.wait(0.5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = -signal.SIGXCPU
        if process.stdout is not None:
            process.stdout.close()
        return reason if code == -signal.SIGXCPU else f"its reader crashed (exit code {code}), or ran out of memory"


def _answer(path: Path) -> dict[str, Any]:
    try:
        content = read_content(path)
    except ValueError as error:
        return {"reason": str(error)}
    if len(content.text) > LONGEST_TEXT:
        return {"reason": f"its text has more than {LONGEST_TEXT:,} characters; split it"}
    return {**asdict(content), "headings": dict(content.headings)}


def _serve(memory: int) -> None:
    """Answer requests on stdin until it closes."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is not an answer
    for line in sys.stdin.buffer:
        name, seconds = json.loads(line)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        # The signal at the soft limit ends the process: CPU time does not depend on the load of the machine.
        limit = int(usage.ru_utime + usage.ru_stime) + 1 + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        answers.write(json.dumps(_answer(Path(os.fsdecode(bytes.fromhex(name))))).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))

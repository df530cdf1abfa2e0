"""The process of a peer: started for one shape, told episodes, and gone with all of its memory afterwards."""

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

from transformers import PretrainedConfig

from sleuth.bench import vllm_peer
from sleuth.bench.workloads import Episode
from sleuth.errors import EngineFailure, InputError

PATIENCE = 900.0
MOMENT = 10.0
FAREWELL = 30.0
LAST_LINES = 30


class Vllm:
    """vLLM in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process = process
        self._log = log
        self.version = ""

    def seconds(self, episodes: Sequence[Episode]) -> float:
        """How long all of the episodes take, begun together."""
        told = [[(turn.given, turn.sampled) for turn in episode] for episode in episodes]
        answer = self.ask(told)
        asked = sum(turn.sampled for episode in episodes for turn in episode)
        if answer["sampled"] != asked:
            raise EngineFailure(f"vLLM sampled {answer['sampled']} tokens, {asked} were asked for")
        return float(answer["seconds"])

    def ask(self, told: object) -> dict[str, Any]:
        """One line there and one back."""
        assert self._process.stdin  # noqa: S101  pipes of a Popen made with them
        try:
            self._process.stdin.write(json.dumps(told) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EngineFailure(self._reason()) from None
        answer: dict[str, Any] = json.loads(self._line())
        return answer

    def printed(self) -> list[str]:
        """What it and its libraries printed so far, without empty lines."""
        return [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]

    def _line(self) -> str:
        """The next line; children of the process may hold its pipe open, so its own end is watched too."""
        assert self._process.stdout  # noqa: S101
        end = monotonic() + PATIENCE
        while monotonic() < end:
            ended = self._process.poll() is not None
            if select.select([self._process.stdout], [], [], 0.0 if ended else 0.5)[0]:
                if line := self._process.stdout.readline():
                    return line
                break
            if ended:
                break
        raise EngineFailure(self._reason())

    def _reason(self) -> str:
        # Its pipes close a moment before it has ended.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(MOMENT)
        lines = self.printed()
        code = self._process.poll()
        how = f"gave no answer for {PATIENCE:g} s" if code is None else f"ended with code {code}"
        return "\n".join((f"vLLM {how}; the last it printed:", *(lines[-LAST_LINES:] or ["nothing"])))


@contextmanager
def opened(shape: PretrainedConfig, settings: Mapping[str, Any], python: str) -> Iterator[Vllm | None]:
    """vLLM over random weights of a shape, ready to generate; None where it is not installed."""
    with TemporaryDirectory() as scratch, _started(python, Path(scratch, "log")) as process:
        shape.save_pretrained(Path(scratch, "model"))
        peer = Vllm(process, Path(scratch, "log"))
        version = peer.ask({"model": str(Path(scratch, "model")), "settings": settings})["version"]
        peer.version = version or ""
        yield peer if version else None


@contextmanager
def _started(python: str, log: Path) -> Iterator["subprocess.Popen[str]"]:
    # -P: the folder of the script holds modules of ours, none of which it means to import.
    command = [python, "-P", str(vllm_peer.__file__)]
    pipe = subprocess.PIPE
    with log.open("w") as printed:
        try:
            process = subprocess.Popen(  # noqa: S603
                command, stdin=pipe, stdout=pipe, stderr=printed, text=True, start_new_session=True
            )
        except OSError as error:
            raise InputError(f"{python} cannot be run ({error}); give the Python of an environment with vLLM") from None
    try:
        yield process
        _let_go(process)
    finally:
        _end(process)


def _let_go(process: "subprocess.Popen[str]") -> None:
    """Without more lines it ends by itself, and puts its own children away."""
    assert process.stdin  # noqa: S101
    with suppress(BrokenPipeError):
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(FAREWELL)


def _end(process: "subprocess.Popen[str]") -> None:
    """Ends it and all it started, and waits for them: none may hold memory of the GPU when the next one measures."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            stream.close()  # type: ignore[union-attr]
    end = monotonic() + MOMENT
    with suppress(ProcessLookupError):
        while monotonic() < end:
            os.killpg(process.pid, 0)
            sleep(0.02)

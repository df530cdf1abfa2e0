"""Running a pipeline: one command after the other, each in its own process; finished stages are skipped."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sleuth.errors import InputError, Interrupted, NothingMade, TrainingStopped
from sleuth.pipeline.stage import Stage
from sleuth.runs.atomic import atomic_write, remove
from sleuth.runs.interruption import LAUNCHED
from sleuth.runs.json_files import read_json
from sleuth.runs.lock import locked

LOCK = "lock"
SECONDS = "seconds.json"
# Until the command handles Ctrl-C itself, it ends without a traceback.
COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); from sleuth.cli.main import main; "
    "signal.signal(signal.SIGINT, signal.default_int_handler); main()"
)

STDERR = 2  # where the output of stages goes: standard output is left to the result

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A command that runs stages in a folder, which can be continued only with the same options.

    `stages` plans them again before each one, because later stages may depend on the outputs of earlier ones.
    `actions` run the stages without a command, by name. `layout` is the version of the folder: raise it if stages or
    their outputs change.
    """

    command: str
    folder: Path
    options_file: str
    layout: int
    options: Mapping[str, Any]
    stages: Callable[[], Sequence[Stage]]
    actions: Mapping[str, Callable[[], None]] = field(default_factory=dict)

    def run(self, log: Log, until: str | None = None) -> None:
        """Run the stages whose outputs are missing, in order, up to `until`; raises InputError if a stage fails."""
        require_output_folder(self.folder, self.options_file, self.command)
        self.folder.mkdir(parents=True, exist_ok=True)
        busy = f"another process is working in {self.folder}; wait for it to finish, or stop it"
        with locked(self.folder / LOCK, busy):
            self._require_same_options()
            stages = self.stages()
            _require_no_stale_outputs(stages)
            count = len(stages)
            for number in range(1, 1 + (count if until is None else find_stage(stages, until))):
                stage = self.stages()[number - 1]
                head = f"[{number}/{count}] {stage.name}"
                if stage.is_done:
                    log(f"{head}: done")
                    continue
                log(f"{head}: {stage.purpose}")
                started = time.monotonic()
                self._run_stage(stage, log)
                self._record_seconds(stage.name, time.monotonic() - started)

    def describe(self) -> list[str]:
        """Return two lines per stage: whether it is done, and its command."""
        lines = []
        for number, stage in enumerate(self.stages(), 1):
            command = f"sleuth {shlex.join(stage.command)}" if stage.words else f"(run by {self.command} itself)"
            done = " (done)" if stage.is_done else ""
            lines += [f"{number:>2} {stage.name}: {stage.purpose}{done}", f"   {command}"]
        return lines

    def _require_same_options(self) -> None:
        path = self.folder / self.options_file
        now = json.loads(json.dumps(self.options))  # tuples become lists, as in the file
        if not path.exists():
            with atomic_write(path) as temporary:
                temporary.write_text(json.dumps({"layout": self.layout, **now}, indent=2) + "\n", encoding="utf-8")
            return
        before = read_json(path)
        if before.get("layout") != self.layout:
            raise InputError(f"{self.folder} was made by another version of {self.command}; give another --out")
        if changed := [name for name in now if before.get(name) != now[name]]:
            name = changed[0]
            raise InputError(
                f"{self.folder} was started with {name} = {before.get(name)!r}, not {now[name]!r}; use the same "
                "options, or another --out"
            )

    def _run_stage(self, stage: Stage, log: Log) -> None:
        if not stage.words:
            return self.actions[stage.name]()
        if not (stage.begun is not None and stage.begun.exists()):
            for output in stage.outputs:  # left by a stage that was killed between two outputs
                if output.exists():
                    remove(output)
        log(f"      sleuth {shlex.join(stage.command)}")
        code, printed = _call(stage)
        if stage.capture and code == 0:
            with atomic_write(stage.outputs[0]) as path:
                path.write_bytes(printed)
        if stage.optional and code == NothingMade.exit_code:
            log("      nothing was made; continuing without it")
            with atomic_write(stage.outputs[0]) as path:
                path.touch()
        if stage.is_done and code in (0, NothingMade.exit_code):
            return None
        if code in (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM):
            raise Interrupted(signal.SIGINT if abs(code) % 128 == signal.SIGINT else signal.SIGTERM)
        problem = f"the stage {stage.name!r} failed with exit code {code}"
        hint = "fix the cause, then run the same command again; finished stages are kept"
        if stage.capture:
            problem += f": {printed.decode(errors='replace')[-300:]}"
        by_user = (InputError.exit_code, NothingMade.exit_code)
        raise (InputError if code in by_user else TrainingStopped)(f"{problem}; {hint}")

    def _record_seconds(self, name: str, seconds: float) -> None:
        path = self.folder / SECONDS
        known = read_json(path) if path.exists() else {}
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps({**known, name: round(seconds, 1)}, indent=2) + "\n", encoding="utf-8")


def require_output_folder(folder: Path, options_file: str, command: str) -> None:
    """Raise InputError if the output folder of a command is a file, or holds something else."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder as --out")
    if (folder / options_file).exists() or not folder.is_dir():
        return
    if other := sorted(path.name for path in folder.iterdir() if path.name != LOCK):
        raise InputError(
            f"{folder} is not empty ({', '.join(other[:3])}) and has no {options_file}, so {command} did not make it; "
            "give a new folder as --out"
        )


def find_stage(stages: Sequence[Stage], name: str) -> int:
    """Return the number of the stage with this name, from 1; raises InputError if there is none."""
    names = [stage.name for stage in stages]
    if name not in names:
        raise InputError(f"--until {name!r} is not a stage; expected one of: {', '.join(names)}")
    return names.index(name) + 1


def _require_no_stale_outputs(stages: Sequence[Stage]) -> None:
    """Raise InputError if an output is missing but others that were made from it exist."""
    missing: list[Path] = []
    stale: list[Path] = []
    for stage in stages:
        inputs = [*map(Path, stage.words), *stage.reads]
        if any(path.is_relative_to(output) or output.is_relative_to(path) for path in inputs for output in missing):
            stale += [output for output in stage.outputs if output.exists()]
            missing += stage.outputs
        elif not stage.is_done:
            missing += stage.outputs
    if stale:
        first = next(output for output in missing if not output.exists())
        raise InputError(
            f"{first} is missing, but outputs that were made from it exist; restore it, or delete them to make them "
            f"again: rm -r {shlex.join(map(str, stale))}"
        )


def _call(stage: Stage) -> tuple[int, bytes]:
    """Run the command of a stage; it ends with this process, because its standard input is a pipe from it."""
    environment = {**os.environ, LAUNCHED: "1"}
    command = [sys.executable, "-c", COMMAND, *stage.command]
    output = subprocess.PIPE if stage.capture else STDERR
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, env=environment) as process:  # noqa: S603
        received: list[int] = []

        def forward(number: int, _: object) -> None:
            received.append(number)
            process.send_signal(signal.SIGINT)

        before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            printed = b"" if process.stdout is None else process.stdout.read()
            code = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if received and code:
            code = 128 + received[0]
        return code, printed

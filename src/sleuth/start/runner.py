"""Running the stages of `sleuth start`: one command after the other, each in its own process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sleuth.errors import InputError, Interrupted, NothingMade, TrainingStopped
from sleuth.runs.atomic import atomic_write, remove
from sleuth.runs.interruption import LAUNCHED
from sleuth.runs.json_files import read_json
from sleuth.runs.lock import locked
from sleuth.start.report import write_report
from sleuth.start.sizes import Sizes, write_recipe
from sleuth.start.stages import Stage, StartOptions, plan_stages

OPTIONS = "start.json"
SECONDS = "seconds.json"
COMMAND = "from sleuth.cli.main import main; main()"

Log = Callable[[str], None]


def start(options: StartOptions, folder: Path, sizes: Sizes, log: Log) -> None:
    """Run the stages whose outputs are missing, in order; raises InputError if a stage fails."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock", f"another process is working in {folder}; wait for it to finish, or stop it"):
        _require_same_options(options, folder)
        count = len(plan_stages(options, folder, sizes))
        for number in range(1, count + 1):
            stage = plan_stages(options, folder, sizes)[number - 1]  # it may depend on earlier outputs
            head = f"[{number}/{count}] {stage.name}"
            if stage.is_done:
                log(f"{head}: done")
                continue
            log(f"{head}: {stage.purpose}")
            started = time.monotonic()
            _run(stage, options, folder, sizes, log)
            _record_seconds(folder, stage.name, time.monotonic() - started)


def describe_stages(stages: Sequence[Stage]) -> list[str]:
    """Return a line per stage: its command, and whether it is done."""
    lines = []
    for number, stage in enumerate(stages, 1):
        command = f"sleuth {' '.join(stage.command)}" if stage.words else "(run by sleuth start itself)"
        done = " (done)" if stage.is_done else ""
        lines += [f"{number:>2} {stage.name}: {stage.purpose}{done}", f"   {command}"]
    return lines


def _require_same_options(options: StartOptions, folder: Path) -> None:
    path = folder / OPTIONS
    if not path.exists():
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(options.as_json(), indent=2) + "\n", encoding="utf-8")
        return
    before, now = read_json(path), options.as_json()
    changed = [name for name in now if before.get(name) != now[name]]
    if changed:
        name = changed[0]
        raise InputError(
            f"{folder} was started with {name} = {before.get(name)!r}, not {now[name]!r}; use the same options, or "
            "another --out"
        )


def _run(stage: Stage, options: StartOptions, folder: Path, sizes: Sizes, log: Log) -> None:
    if stage.name == "recipe":
        return write_recipe(folder, sizes, abstain=options.unanswerable > 0, seed=options.seed)
    if stage.name == "report":
        return write_report(folder, options)
    if not (stage.begun is not None and stage.begun.exists()):
        for output in stage.outputs:  # left by a stage that was killed between two outputs
            if output.exists():
                remove(output)
    log(f"      sleuth {' '.join(stage.command)}")
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


def _call(stage: Stage) -> tuple[int, bytes]:
    """Run the command of a stage; it ends with this process, because its standard input is a pipe from it."""
    environment = {**os.environ, LAUNCHED: "1"}
    command = [sys.executable, "-c", COMMAND, *stage.command]
    output = subprocess.PIPE if stage.capture else None
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


def _record_seconds(folder: Path, name: str, seconds: float) -> None:
    path = folder / SECONDS
    known = read_json(path) if path.exists() else {}
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps({**known, name: round(seconds, 1)}, indent=2) + "\n", encoding="utf-8")

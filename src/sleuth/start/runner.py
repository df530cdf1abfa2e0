"""Running the stages of `sleuth start`: one command after the other, each in its own process."""

import json
import os
import shlex
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
LAYOUT = 2  # of the output folder; raise it if stages or their outputs change
LOCK = "lock"
SECONDS = "seconds.json"
# Until the command handles Ctrl-C itself, it ends without a traceback.
COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); from sleuth.cli.main import main; "
    "signal.signal(signal.SIGINT, signal.default_int_handler); main()"
)

Log = Callable[[str], None]


def start(options: StartOptions, folder: Path, sizes: Sizes, log: Log, until: str | None = None) -> None:
    """Run the stages whose outputs are missing, in order, up to `until`; raises InputError if a stage fails."""
    require_output_folder(options, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, f"another process is working in {folder}; wait for it to finish, or stop it"):
        _require_same_options(options, folder)
        stages = plan_stages(options, folder, sizes)
        _require_no_stale_outputs(stages)
        count = len(stages)
        for number in range(1, 1 + (count if until is None else find_stage(stages, until))):
            stage = plan_stages(options, folder, sizes)[number - 1]  # it may depend on earlier outputs
            head = f"[{number}/{count}] {stage.name}"
            if stage.is_done:
                log(f"{head}: done")
                continue
            log(f"{head}: {stage.purpose}")
            started = time.monotonic()
            _run(stage, options, folder, sizes, log)
            _record_seconds(folder, stage.name, time.monotonic() - started)


def find_stage(stages: Sequence[Stage], name: str) -> int:
    """Return the number of the stage with this name, from 1; raises InputError if there is none."""
    names = [stage.name for stage in stages]
    if name not in names:
        raise InputError(f"--until {name!r} is not a stage; expected one of: {', '.join(names)}")
    return names.index(name) + 1


def require_output_folder(options: StartOptions, folder: Path) -> None:
    """Raise InputError if the output folder is a file, holds something else, or lies among the documents."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder as --out")
    if folder.resolve().is_relative_to(Path(options.documents).resolve()):
        raise InputError(
            f"the output folder {folder} lies in the folder of documents {options.documents}, so its files would count "
            "as documents; give an --out elsewhere"
        )
    if (folder / OPTIONS).exists() or not folder.is_dir():
        return
    if other := sorted(path.name for path in folder.iterdir() if path.name != LOCK):
        raise InputError(
            f"{folder} is not empty ({', '.join(other[:3])}) and has no {OPTIONS}, so sleuth start did not make it; "
            "give a new folder as --out"
        )


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


def describe_stages(stages: Sequence[Stage]) -> list[str]:
    """Return a line per stage: its command, and whether it is done."""
    lines = []
    for number, stage in enumerate(stages, 1):
        command = f"sleuth {shlex.join(stage.command)}" if stage.words else "(run by sleuth start itself)"
        done = " (done)" if stage.is_done else ""
        lines += [f"{number:>2} {stage.name}: {stage.purpose}{done}", f"   {command}"]
    return lines


def _require_same_options(options: StartOptions, folder: Path) -> None:
    path = folder / OPTIONS
    if not path.exists():
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps({"layout": LAYOUT, **options.as_json()}, indent=2) + "\n", encoding="utf-8")
        return
    before, now = read_json(path), options.as_json()
    if before.get("layout") != LAYOUT:
        raise InputError(f"{folder} was made by another version of sleuth start; give another --out")
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
        return write_report(folder, options, sizes)
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

"""Progress of long work: bars on a terminal, plain lines elsewhere."""

from collections.abc import Mapping
from time import monotonic
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from sleuth.api.console import Terminal

LINE_INTERVAL = 30.0  # seconds between lines without a terminal
STEP_INTERVAL = 10  # training steps between lines without a terminal


class _Bars:
    """A rich progress display as a context manager."""

    _bars: Progress

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()


class StageProgress(_Bars):
    """Shows reports of (stage, done, total) on stderr, with rate and remaining time."""

    def __init__(self, console: Console | None = None, pause: float = LINE_INTERVAL) -> None:
        self._console, self._pause = console or Terminal(stderr=True), pause
        self._bars = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._stage = ""
        self._task: TaskID | None = None
        self._started = self._printed = 0.0
        self._first = 0  # count at the start of the stage, which is not 0 for a resumed stage

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self._start(stage, done, total)
        elapsed = monotonic() - self._started
        rate = f"{_short((done - self._first) / elapsed)}/s" if elapsed > 0 else ""
        count = f"{_short(done)} of {_short(total)}" if total else _short(done)
        if self._task is not None:
            self._bars.update(self._task, completed=done, total=total or None, count=count, rate=rate)
        if not self._console.is_terminal and monotonic() - self._printed >= self._pause:
            self._printed = monotonic()
            new = done - self._first
            left = f"{(total - done) * elapsed / new:,.0f} s left" if total and new > 0 else "time left unknown"
            self._console.print(f"{stage}: {count}, {rate}, {left}")

    def _start(self, stage: str, done: int, total: int) -> None:
        if self._task is not None:
            last = self._bars.tasks[self._task]
            self._bars.update(self._task, total=last.total or last.completed, completed=last.total or last.completed)
        self._stage, self._started, self._printed, self._first = stage, monotonic(), monotonic(), done
        self._task = self._bars.add_task(stage, total=total or None, count="", rate="")
        if not self._console.is_terminal:
            self._console.print(stage)


class TrainingProgress(_Bars):
    """RunObserver that shows a bar per stage and the main metrics of the latest step."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description:<40}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[metrics]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None

    def begin(self, stage: str, total: int) -> None:
        if self._task is not None:
            self._bars.update(self._task, completed=self._bars.tasks[self._task].total)
        self._task = self._bars.add_task(stage, total=total, metrics="")
        if not self._console.is_terminal:
            self._console.print(stage)

    def advance(self, parts: int = 1) -> None:
        if self._task is not None:
            self._bars.advance(self._task, parts)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        line = format_metrics(metrics)
        if self._task is not None:
            self._bars.update(self._task, metrics=line)
        if not self._console.is_terminal and step % STEP_INTERVAL == 0:
            self._console.print(f"step {step}: {line}", soft_wrap=True)

    def log(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Format the reward, EM, searches and speed of a step."""
    speed = metrics["episode/tokens_all"] / metrics["time/step"]
    return (
        f"reward {metrics['reward/mean']:.2f}  EM {metrics['episode/em']:.2f}  "
        f"searches {metrics['episode/searches']:.1f}  {speed:,.0f} tokens/s"
    )


def _short(number: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if suffix == 'k' else size):,.1f}{suffix}"
    return f"{number:,.0f}"

"""Long work as a person sees it: a bar with rate and time left for each stage, or plain lines without a terminal."""

from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sleuth.cli.printed import Terminal

BETWEEN_LINES = 30.0  # seconds, where each line stays


class Meter:
    """Takes what work reports (stage, done, total) and shows it on stderr; lines come `pause` seconds apart."""

    def __init__(self, console: Console | None = None, pause: float = BETWEEN_LINES) -> None:
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
        self._began = self._spoke = 0.0
        self._first = 0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self._begin(stage, done, total)
        if self._task is not None:
            self._bars.update(
                self._task, completed=done, total=total or None, count=_count(done, total), rate=self._rate(done)
            )
        self._say(done, total)

    def _begin(self, stage: str, done: int, total: int) -> None:
        if self._task is not None:
            last = self._bars.tasks[self._task]
            self._bars.update(self._task, total=last.total or last.completed, completed=last.total or last.completed)
        self._stage, self._began, self._spoke, self._first = stage, monotonic(), monotonic(), done
        self._task = self._bars.add_task(stage, total=total or None, count="", rate="")
        if not self._console.is_terminal:
            self._console.print(stage)

    def _say(self, done: int, total: int) -> None:
        if not self._console.is_terminal and monotonic() - self._spoke >= self._pause:
            self._spoke = monotonic()
            self._console.print(f"{self._stage}: {_count(done, total)}, {self._rate(done)}, {self._left(done, total)}")

    def _rate(self, done: int) -> str:
        # What an earlier, killed run had done is no speed of this one.
        elapsed = monotonic() - self._began
        return f"{_short((done - self._first) / elapsed)}/s" if elapsed > 0 else ""

    def _left(self, done: int, total: int) -> str:
        fresh = done - self._first
        if not total or fresh <= 0:
            return "time left unknown"
        return f"{(total - done) * (monotonic() - self._began) / fresh:,.0f} s left"


def _count(done: int, total: int) -> str:
    return f"{_short(done)} of {_short(total)}" if total else _short(done)


def _short(number: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if suffix == 'k' else size):,.1f}{suffix}"
    return f"{number:,.0f}"

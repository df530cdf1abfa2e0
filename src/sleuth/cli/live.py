"""What a person sees while a run goes on: a bar for each stage, and a line with the figures of the newest step."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

EVERY = 10  # steps between lines where there is no terminal to redraw


class Live:
    """Shows stages and steps on a terminal as bars, elsewhere as plain lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<40}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, stage: str, total: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=self._progress.tasks[self._task].total)
        self._task = self._progress.add_task(stage, total=total, figures="")
        if not self._console.is_terminal:
            self._console.print(stage)

    def advance(self, parts: int = 1) -> None:
        if self._task is not None:
            self._progress.advance(self._task, parts)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        line = figures(metrics)
        if self._task is not None:
            self._progress.update(self._task, figures=line)
        if not self._console.is_terminal and step % EVERY == 0:
            self._console.print(f"step {step}: {line}", soft_wrap=True)

    def log(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)


def figures(metrics: Mapping[str, float]) -> str:
    """Reward, EM, searches and speed of a step, in one line."""
    speed = metrics["episode/tokens_all"] / metrics["time/step"]
    return (
        f"reward {metrics['reward/mean']:.2f}  EM {metrics['episode/em']:.2f}  "
        f"searches {metrics['episode/searches']:.1f}  {speed:,.0f} tokens/s"
    )

"""Progress callbacks of long operations, called with the stage, the amount done and the total (0 if unknown)."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Discard progress reports."""
    del stage, done, total

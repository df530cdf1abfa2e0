"""The callback by which long work reports progress: stage, amount done, and total (0 if unknown)."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Ignore progress."""
    del stage, done, total

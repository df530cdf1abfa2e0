"""How long work says where it is: the stage in words, how much is done, and of how much (0 where nobody knows)."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Says nothing."""
    del stage, done, total

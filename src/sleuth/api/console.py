"""Consoles that make control characters in documents, model output and file names visible."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sleuth.page.document import visible


class Terminal(Console):
    """A rich console that makes control characters in text visible; its own styling is unaffected."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def stderr_console(*, quiet: bool = False) -> Terminal:
    """A console on stderr that prints text literally, without markup."""
    return Terminal(stderr=True, markup=False, highlight=False, quiet=quiet)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Turn off the progress bars and warnings of transformers inside the context."""
    from transformers.utils import logging

    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()

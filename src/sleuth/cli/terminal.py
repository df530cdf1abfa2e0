"""Terminal output of the commands: control characters in documents, model output and file names are made visible."""

from collections.abc import Iterable

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markdown import Markdown
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


def echo(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print text to stdout, or to stderr."""
    typer.echo(visible(text), nl=nl, err=err)


def print_markdown(text: str) -> None:
    """Print Markdown, rendered on a terminal and unchanged to a file or pipe."""
    console = Terminal()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        echo(text, nl=False)


def silence_transformers() -> None:
    """Turn off the progress bars and warnings of transformers; errors are still raised."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

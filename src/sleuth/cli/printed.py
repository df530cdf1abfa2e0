"""What commands print: no text of a document, a model or a file name reaches the terminal with its escapes."""

from collections.abc import Iterable

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markdown import Markdown
from rich.segment import Segment

from sleuth.page.markup import visible


class Terminal(Console):
    """A console that shows hidden characters of any text; styles and cursor moves of its own are no text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable, their text visible."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def say(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Prints text to stdout, or to stderr."""
    typer.echo(visible(text), nl=nl, err=err)


def printed(text: str) -> None:
    """Prints Markdown to stdout: a person at a terminal sees a table drawn, a file or a pipe gets the text itself."""
    console = Terminal()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        say(text, nl=False)

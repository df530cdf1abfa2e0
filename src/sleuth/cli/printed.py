"""Markdown as its reader wants it: a person at a terminal sees a table drawn, a file or a pipe gets the text itself."""

import typer
from rich.console import Console
from rich.markdown import Markdown


def printed(text: str) -> None:
    """Prints Markdown to stdout."""
    console = Console()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        typer.echo(text, nl=False)

"""Terminal output of the commands: control characters in documents, model output and file names are made visible."""

import typer
from rich.markdown import Markdown

from sleuth.api.console import Terminal as Terminal
from sleuth.api.console import stderr_console as stderr_console
from sleuth.page.document import visible


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

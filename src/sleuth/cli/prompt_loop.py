"""The conversation of `sleuth ask` without a question: a prompt on a terminal, or one question per line of a pipe."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from sleuth.cli.terminal import echo
from sleuth.errors import InputError
from sleuth.records import Malformed, ToolCall

if TYPE_CHECKING:
    from sleuth.api.agent import AgentEvent
    from sleuth.api.dialogue import Dialogue

PROMPT = "> "
QUIT = ("/quit", "/exit")
NEW, HELP = "/new", "/help"
COMMANDS = "/new forgets the conversation, /quit or Ctrl-D ends it"


def converse(dialogue: "Dialogue", console: Console, temperature: float, seed: int) -> int:
    """Answer questions until the input ends; return the number of questions asked."""
    terminal = sys.stdin.isatty()
    if terminal:
        console.print(Text(f"Ask a question; {COMMANDS}.", style="dim"), soft_wrap=True)
    asked = 0
    for line in _lines(terminal):
        text = line.strip()
        if not text:
            continue
        if text in QUIT:
            break
        if text == NEW:
            dialogue.clear()
        elif text.startswith("/"):
            known = "" if text == HELP else f"unknown command {text}: "
            console.print(Text(f"{known}{COMMANDS}", style="dim"), soft_wrap=True)
        else:
            if not terminal:
                console.print(Text(f"{PROMPT}{text}"), soft_wrap=True)
            _answer(dialogue, text, console, temperature, seed)
            asked += 1
    return asked


def _lines(terminal: bool) -> Iterator[str]:
    """Yield the lines of the input; Ctrl-C and Ctrl-D at the prompt end it."""
    if not terminal:
        yield from sys.stdin
        return
    with suppress(ImportError):  # not on every platform
        import readline  # noqa: F401  line editing and history in input()
    while True:
        try:
            yield input(PROMPT)
        except (EOFError, KeyboardInterrupt):
            echo("")
            return


def _answer(dialogue: "Dialogue", text: str, console: Console, temperature: float, seed: int) -> None:
    """Stream one answer; Ctrl-C abandons it, and the conversation goes on."""
    printer = EventPrinter(console)
    try:
        for event in dialogue.stream(text, temperature=temperature, seed=seed):
            printer.write(event)
    except KeyboardInterrupt:
        printer.end_thought()
        console.print(Text("interrupted", style="red"))
    except InputError as error:  # of this question: the next one may be answered
        printer.end_thought()
        console.print(Text(str(error), style="red"), soft_wrap=True)


class EventPrinter:
    """Prints the events of an answer: thoughts as they arrive, then each search with the titles that it found."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._thinking = False

    def write(self, event: "AgentEvent") -> None:
        from sleuth.api.agent import AgentAnswer, Thought, ToolOutput

        if isinstance(event, Thought):
            self._thinking = True
            self._console.print(Text(event.text, style="dim"), end="", soft_wrap=True)
            return
        self.end_thought()
        match event:
            case ToolCall():
                words = "; ".join(event.lookups) or str(dict(event.arguments))
                self._print(f"[{event.name}] {words}", "cyan")
            case ToolOutput(failure=str(failure)):
                self._print(f"  failed: {failure}", "red")
            case ToolOutput(text=str(text)):
                self._print(f"  {text}", "green")
            case ToolOutput():
                for number, hit in enumerate(event.hits, start=1):
                    self._print(f"  {number}. {hit.passage.title or hit.passage.id}", "green")
            case Malformed():
                self._print(f"[neither a call nor an answer] {event.reason}", "red")
            case AgentAnswer():
                self._print(str(event), "bold" if event.text is not None else "red")

    def end_thought(self) -> None:
        if self._thinking:
            self._console.print()
        self._thinking = False

    def _print(self, text: str, style: str) -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

"""sleuth ask: ask a question and stream the transcript, or hold a conversation."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from sleuth.cli.options import (
    MAX_SEED,
    AgentIndex,
    AgentSettings,
    Before,
    KeyEnv,
    Method,
    ModelName,
    Temperature,
    Timeout,
    parse_endpoint,
)
from sleuth.cli.terminal import Terminal, silence_transformers, stderr_console
from sleuth.config.agent import UNSEARCHED
from sleuth.errors import ConfigError, InputError
from sleuth.records import StopReason

if TYPE_CHECKING:
    from sleuth.agent.loading import AgentOptions
    from sleuth.api.agent import Agent

STYLES = {"think": "dim", "search": "cyan", "information": "green", "answer": "bold"}
STYLES |= {"tool_call": "cyan", "tool_response": "green"}
TAG = re.compile(rf"<(/?)({'|'.join(STYLES)})>")
PARTIAL_TAG = re.compile(r"</?[a-z_]*$")


def ask(
    name: Annotated[str, Argument(metavar="RUN|MODEL|URL", help="Run, model folder, hub name or model server.")],
    question: Annotated[str | None, Argument(help="The question. Default: a conversation, read from stdin.")] = None,
    before: Before = False,
    temperature: Temperature = 0.0,
    seed: Annotated[int, Option(min=0, max=MAX_SEED, help="Sampling seed.")] = 0,
    index: AgentIndex = None,
    method: Method = None,
    served: ModelName = None,
    key_env: KeyEnv = None,
    timeout: Timeout = None,
    settings: AgentSettings = None,
) -> None:
    """Ask an agent a question, or hold a conversation, and stream its thoughts, searches, results and answers.

    A run brings its index; a model needs --index. Without a question, each line of the input is one.
    """
    if question is not None and not question.strip():
        raise InputError("the question is empty; give some text")
    endpoint = parse_endpoint(name, served, key_env, timeout)
    given = tuple(settings or ())
    if endpoint is None and not (Path(name) / "manifest.json").is_file():
        from sleuth.agent.loading import AgentOptions

        given = (*_suggest(name, AgentOptions(given, index, method, before)), *given)
    from sleuth.api.agent import Agent

    silence_transformers()
    console = PipeConsole(highlight=False)
    server: dict[str, Any] = {"model": served, "key_env": key_env, "timeout": timeout}
    with Agent.load(name, index, settings=given, method=method, before=before, **server) as agent:
        if question is None:
            _converse(agent, console, temperature, seed)
            return
        printer = TranscriptPrinter(console)
        answer = agent.ask(question, temperature=temperature, seed=seed, on_text=printer.write)
    printer.flush()
    console.print()
    if endpoint is not None and answer.stop is StopReason.ENGINE_FAILED:
        raise InputError(f"{answer.trajectory.failure}")
    console.print(Text(str(answer), style="bold" if answer.text is not None else "red"))


def _suggest(name: str, options: "AgentOptions") -> tuple[str, ...]:
    """Print and return settings that suit a plain model, after checks that need no weights."""
    from sleuth.agent.loading import describe_agent
    from sleuth.agent.plain_model import suggest_settings

    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        describe_agent(name, options, None)  # raises: neither a run nor a model
    if options.before:
        raise ConfigError("--before needs a run folder, and this is a model; remove it")
    if options.index is None and options.chosen_method not in UNSEARCHED:
        raise ConfigError(f"{name} is a model without an index; name one with --index, or choose --method direct")
    found = suggest_settings(name, options)
    if found.note:
        stderr_console().print(f"{name}: {found.note}", soft_wrap=True)
    return found.settings


def _converse(agent: "Agent", console: Console, temperature: float, seed: int) -> None:
    from sleuth.cli.prompt_loop import converse

    dialogue = agent.dialogue()
    if dialogue.obstacle is not None:
        stderr_console().print(f"every question stands alone: {dialogue.obstacle}", soft_wrap=True)
    if not converse(dialogue, console, temperature, seed) and not sys.stdin.isatty():
        raise InputError("the input has no question; give one as an argument, or one per line")


class PipeConsole(Terminal):
    """A console that stops printing when the reader closes the pipe."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class TranscriptPrinter:
    """Prints streamed text in the colour of the enclosing tag; an incomplete tag is held back."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tag = ""
        self._pending = ""

    def write(self, text: str) -> None:
        text, start = self._pending + text, 0
        for tag in TAG.finditer(text):
            self._print(text[start : tag.start()], STYLES.get(self._tag, ""))
            self._tag = "" if tag[1] else tag[2]
            self._print(tag[0], "dim")
            start = tag.end()
        partial = PARTIAL_TAG.search(text, start)
        self._pending = partial[0] if partial else ""
        self._print(text[start : len(text) - len(self._pending)], STYLES.get(self._tag, ""))

    def flush(self) -> None:
        self._print(self._pending, STYLES.get(self._tag, ""))
        self._pending = ""

    def _print(self, text: str, style: str) -> None:
        # Soft wrap: rich does not know the column at which a piece starts.
        self._console.print(Text(text, style=style), end="", soft_wrap=True)

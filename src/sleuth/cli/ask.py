"""sleuth ask: ask one question and stream the transcript."""

import re
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from sleuth.cli.options import MAX_SEED, Before, KeyEnv, ModelName, Temperature, Timeout, parse_endpoint
from sleuth.cli.terminal import Terminal, silence_transformers
from sleuth.errors import ConfigError, InputError
from sleuth.records import StopReason
from sleuth.runs.run import Run

STYLES = {"think": "dim", "search": "cyan", "information": "green", "answer": "bold"}
STYLES |= {"tool_call": "cyan", "tool_response": "green"}
TAG = re.compile(rf"<(/?)({'|'.join(STYLES)})>")
PARTIAL_TAG = re.compile(r"</?[a-z_]*$")


def ask(
    run: Annotated[str, Argument(metavar="RUN|URL", help="A run folder, or a model server: http://host/v1.")],
    question: Annotated[str, Argument(help="The question.")],
    before: Before = False,
    temperature: Temperature = 0.0,
    seed: Annotated[int, Option(min=0, max=MAX_SEED, help="Sampling seed.")] = 0,
    index: Annotated[str | None, Option(help="With an address: index folder, server, or web:PROVIDER.")] = None,
    method: Annotated[str | None, Option(help="With an address: search, direct, cot or rag.")] = None,
    served: ModelName = None,
    key_env: KeyEnv = None,
    timeout: Timeout = None,
    settings: Annotated[list[str] | None, Option("--set", help="With an address: a setting KEY=VALUE.")] = None,
) -> None:
    """Ask an agent one question, and stream its thoughts, searches, results and answer."""
    if not question.strip():
        raise InputError("the question is empty; give some text")
    endpoint = parse_endpoint(run, served, key_env, timeout)
    if endpoint is None:
        if index or method or settings:
            raise ConfigError(
                "--index, --method and --set have no effect without an address, since a run has its own; "
                f"to search another index, use: sleuth serve agent {run} --index INDEX"
            )
        if (Path(run) / "config.json").is_file():
            raise InputError(
                f"{run} is a model without an index; serve it with: sleuth serve agent {run} --index INDEX"
            )
        Run.open(Path(run))  # rejects other folders before anything heavy is loaded
    from sleuth.api.agent import Agent

    silence_transformers()
    console = PipeConsole(highlight=False)
    printer = TranscriptPrinter(console)
    with Agent.load(
        run,
        index,
        settings=settings or (),
        method=method,
        before=before,
        model=served,
        key_env=key_env,
        timeout=timeout,
    ) as agent:
        answer = agent.ask(question, temperature=temperature, seed=seed, on_text=printer.write)
    printer.flush()
    console.print()
    if endpoint is not None and answer.stop is StopReason.ENGINE_FAILED:
        raise InputError(f"{answer.trajectory.failure}")
    console.print(Text(str(answer), style="bold" if answer.text is not None else "red"))


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

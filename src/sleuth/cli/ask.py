"""sleuth ask: ask one question and stream the transcript."""

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from sleuth.cli.options import MAX_SEED, Before, KeyEnv, ModelName, Temperature, Timeout, parse_endpoint
from sleuth.cli.terminal import Terminal, silence_transformers
from sleuth.errors import ConfigError, InputError
from sleuth.records import Answer, Outcome, Question, StopReason, Trajectory
from sleuth.runs.run import Run

if TYPE_CHECKING:
    from sleuth.agent.episode import Runner

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
    from sleuth.agent.loading import AgentOptions, describe_remote_agent, load_run_agent

    silence_transformers()
    agent: Runner
    if endpoint is None:
        agent = load_run_agent(Run.open(Path(run)), before)
    else:
        options = AgentOptions(tuple(settings or ()), index, method, before)
        # The question comes from the command line; this file is never read.
        agent = describe_remote_agent(endpoint, options, Path("asked.jsonl")).load()
    console = PipeConsole(highlight=False)
    trajectory = asyncio.run(_answer(agent, question, temperature, seed, console))
    console.print()
    if endpoint is not None and trajectory.stop is StopReason.ENGINE_FAILED:
        raise InputError(str(trajectory.failure))
    console.print(Text(summary_line(trajectory), style="bold" if trajectory.answer is not None else "red"))


async def _answer(agent: "Runner", question: str, temperature: float, seed: int, console: Console) -> Trajectory:
    from sleuth.agent.task import Task

    task = Task(Question("asked", question, (), "asked"), seed=seed, temperature=temperature)
    printer = TranscriptPrinter(console)
    trajectory = await agent.run(task, on_text=printer.write)
    printer.flush()
    return trajectory


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


def summary_line(trajectory: Trajectory) -> str:
    """Return the answer, or the reason why there is none."""
    searches = f"{trajectory.searches} search{'' if trajectory.searches == 1 else 'es'}"
    match trajectory.stop, trajectory.turns[-1] if trajectory.turns else None:
        case StopReason.ANSWERED, turn if turn is not None and isinstance(turn.action, Answer):
            return f"Answer: {turn.action.text} ({searches})"
        case StopReason.SEARCH_UNAVAILABLE, turn if turn is not None and turn.outcome is Outcome.UNAVAILABLE:
            return f"No answer: the search engine failed ({searches})"
        case StopReason.FUNCTION_FAILED, _:
            return f"No answer: {trajectory.failure}"
        case StopReason.OUT_OF_TOKENS, None:
            return "No answer: the prompt exceeds agent.context_tokens; ask a shorter question"
        case reason, _:
            return f"No answer: {reason.value.replace('_', ' ')} ({searches})"

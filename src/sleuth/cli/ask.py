"""sleuth ask: one question, its whole transcript as it happens."""

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from sleuth.cli.options import KEY_ENV, MAX_SEED, MODEL, TIMEOUT, parse_endpoint, require_finite
from sleuth.cli.terminal import Terminal
from sleuth.errors import ConfigError, InputError
from sleuth.records import Answer, Outcome, Question, StopReason, Trajectory
from sleuth.runs.run import Run

if TYPE_CHECKING:
    from sleuth.agent.episode import Runner

STYLES = {"think": "dim", "search": "cyan", "information": "green", "answer": "bold"}
STYLES |= {"tool_call": "cyan", "tool_response": "green"}
TAG = re.compile(rf"<(/?)({'|'.join(STYLES)})>")
HALF = re.compile(r"</?[a-z_]*$")  # what may become a tag when more has come


def ask(
    run: Annotated[
        str, typer.Argument(metavar="RUN|URL", help="the folder of a run, or the address of a model, as http://host/v1")
    ],
    question: Annotated[str, typer.Argument(help="what you want to know")],
    before: Annotated[bool, typer.Option("--before", help="ask the policy as it was before training")] = False,
    temperature: Annotated[float, typer.Option(min=0.0, callback=require_finite, help="0 is greedy")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="of sampling, with a temperature")] = 0,
    index: Annotated[
        str | None, typer.Option(help="with an address: what is searched, an index folder, an address or web:PROVIDER")
    ] = None,
    method: Annotated[str | None, typer.Option(help="with an address: search, direct, cot or rag")] = None,
    served: Annotated[str | None, MODEL] = None,
    key_env: Annotated[str | None, KEY_ENV] = None,
    timeout: Annotated[float | None, TIMEOUT] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="with an address: a setting of agent or retrieval"),
    ] = None,
) -> None:
    """Ask a trained agent; thoughts, searches, what came back and the answer stream by."""
    if not question.strip():
        raise InputError("the question is empty; write what you want to know")
    endpoint = parse_endpoint(run, served, key_env, timeout)
    if endpoint is None and (index or method or settings):
        raise ConfigError(
            "--index, --method and --set have no effect without an address, for a run has its own; "
            f"another index is searched by: sleuth serve agent {run} --index INDEX"
        )
    if endpoint is None and (Path(run) / "config.json").is_file():
        raise InputError(
            f"{run} is a model without an index of its own; serve it with: sleuth serve agent {run} --index INDEX"
        )
    if endpoint is None:
        Run.open(Path(run))  # a folder that is none is told at once, before anything heavy is loaded
    from sleuth.agent.loading import AgentOptions, describe_remote_agent, load_run_agent
    from sleuth.cli.terminal import silence_transformers

    silence_transformers()
    agent: Runner
    if endpoint is None:
        agent = load_run_agent(Run.open(Path(run)), before)
    else:
        options = AgentOptions(tuple(settings or ()), index, method, before)
        # The question comes from the command line: the name of this file is never looked for.
        agent = describe_remote_agent(endpoint, options, Path("asked.jsonl")).load()
    console = Piped(highlight=False)
    trajectory = asyncio.run(_asked(agent, question, temperature, seed, console))
    console.print()
    if endpoint is not None and trajectory.stop is StopReason.ENGINE_FAILED:
        raise InputError(str(trajectory.failure))
    console.print(Text(closing(trajectory), style="bold" if trajectory.answer is not None else "red"))


async def _asked(agent: "Runner", question: str, temperature: float, seed: int, console: Console) -> Trajectory:
    from sleuth.agent.episode import Task

    asked = Question(id="asked", question=question, golden_answers=(), data_source="asked")
    stream = Stream(console)
    trajectory = await agent.run(Task(asked, seed=seed, temperature=temperature), on_text=stream.hear)
    stream.end()
    return trajectory


class Piped(Terminal):
    """A console whose reader may leave: what comes after is not shown, and nothing breaks."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Stream:
    """Prints text as it comes, coloured by the tag it stands in; half a tag waits for its other half."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._within = ""
        self._held = ""

    def hear(self, text: str) -> None:
        text, place = self._held + text, 0
        for tag in TAG.finditer(text):
            self._print(text[place : tag.start()], STYLES.get(self._within, ""))
            self._within = "" if tag[1] else tag[2]
            self._print(tag[0], "dim")
            place = tag.end()
        half = HALF.search(text, place)
        self._held = half[0] if half else ""
        self._print(text[place : len(text) - len(self._held)], STYLES.get(self._within, ""))

    def end(self) -> None:
        """No more will come."""
        self._print(self._held, STYLES.get(self._within, ""))
        self._held = ""

    def _print(self, text: str, style: str) -> None:
        # Soft, since a piece does not know where on its line it begins: the terminal breaks long lines.
        self._console.print(Text(text, style=style), end="", soft_wrap=True)


def closing(trajectory: Trajectory) -> str:
    """The last line: the answer, or why there is none."""
    searches = f"{trajectory.searches} search{'' if trajectory.searches == 1 else 'es'}"
    match trajectory.stop, trajectory.turns[-1] if trajectory.turns else None:
        case StopReason.ANSWERED, turn if turn is not None and isinstance(turn.action, Answer):
            return f"Answer: {turn.action.text} ({searches})"
        case StopReason.SEARCH_UNAVAILABLE, turn if turn is not None and turn.outcome is Outcome.UNAVAILABLE:
            return f"No answer: the search engine failed ({searches})"
        case StopReason.FUNCTION_FAILED, _:
            return f"No answer: {trajectory.failure}"
        case StopReason.OUT_OF_TOKENS, None:
            return (
                "No answer: the prompt with this question leaves no room (agent.context_tokens); ask something shorter"
            )
        case reason, _:
            return f"No answer: {reason.value.replace('_', ' ')} ({searches})"

"""sleuth try: run an outside agent on a few questions without training, and report what it did."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text
from typer import Argument, Option

from sleuth.api.progress import TrainingProgress
from sleuth.cli.options import MAX_ITEMS, MAX_PROCESSES
from sleuth.cli.terminal import Terminal, echo, silence_transformers, stderr_console
from sleuth.config import recipe
from sleuth.config.data import DataConfig
from sleuth.config.tree import Config
from sleuth.errors import ConfigError
from sleuth.records import run_lengths
from sleuth.runs.interruption import INTERRUPTION, run_interruptible
from sleuth.runs.run import Run
from sleuth.runs.trajectory import trajectory_row

if TYPE_CHECKING:
    from sleuth.gateway.trial import ScoredAttempt, TrialReport
    from sleuth.model.tokens import Tokens

RECIPE = "quickstart-tools"
ALL_FAILED = 1


def try_(
    agent: Annotated[
        str | None, Argument(metavar="AGENT", help="import:package.function, verifiers:ENVIRONMENT or worker.")
    ] = None,
    command: Annotated[str | None, Option(help="Instead of AGENT: a program to start for each attempt.")] = None,
    n: Annotated[
        int, Option("--n", min=1, max=MAX_ITEMS, help="Number of attempts, each on a different question.")
    ] = 10,
    name: Annotated[str, Option("--recipe", help="Recipe that gives the questions, model and settings.")] = RECIPE,
    model: Annotated[str | None, Option(help="Another model folder or hub name (model.policy).")] = None,
    workers: Annotated[
        int | None, Option(min=0, max=MAX_PROCESSES, help="Processes that run AGENT (agent.workers).")
    ] = None,
    settings: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Change a setting.")] = None,
    show: Annotated[bool, Option("--show", help="Print the transcript of one attempt, sampled text in bold.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the report as JSON.")] = False,
    out: Annotated[Path | None, Option(help="New folder for the attempts, to open with sleuth view.")] = None,
) -> None:
    """Run an outside agent without training, and report its calls, segments, rewards, failures and time.

    Exit code 1 if every attempt failed.
    """
    options = {"agent.run": agent, "agent.command": command, "agent.workers": workers, "model.policy": model}
    given = recipe.overrides({key: value for key, value in options.items() if value is not None})
    config = recipe.load(name, [*(settings or ()), *given])
    if as_json and show:
        raise ConfigError("--show prints text, and --json only JSON; give one of the two")
    if not config.agent.is_outside:
        raise ConfigError("there is no agent to try; name one, as in sleuth try import:mine.run, or give --command")
    silence_transformers()
    with TemporaryDirectory(prefix="sleuth-try-") as scratch:
        config = recipe.with_absolute_paths(_with_own_tasks(config, Path(scratch, "tasks.jsonl"), n))
        # What the agent prints must not get into the JSON.
        with (
            _new_run(config, out or Path(scratch, "run")) as run,
            redirect_stdout(sys.stderr) if as_json else nullcontext(),
        ):
            attempts, report, tokens = _try(config, run, n)
            if out is not None:
                run.write_trajectories(0, (trajectory_row(each.trajectory, each.score) for each in attempts))
    if as_json:
        echo(json.dumps(asdict(report), indent=1, allow_nan=False))
    else:
        if show:
            _print_transcript(attempts, tokens)
        echo("\n".join(report.lines()))
    if report.failed == report.attempts:
        raise typer.Exit(ALL_FAILED)


def _with_own_tasks(config: Config, file: Path, n: int) -> Config:
    """Replace a generated world by the first tasks of a verifiers environment, which knows only its own."""
    from sleuth.gateway.agent_function import VERIFIERS

    if config.world is None or not (config.agent.run or "").startswith(VERIFIERS):
        return config
    from sleuth.corpus import questions
    from sleuth.gateway.verifiers_env import load_environment, task_questions

    environment = load_environment(str(config.agent.run).removeprefix(VERIFIERS))
    questions.write(file, islice(task_questions(environment), n))
    return config.model_copy(update={"world": None, "data": DataConfig(train=str(file), test=str(file))})


@contextmanager
def _new_run(config: Config, folder: Path) -> Iterator[Run]:
    """Create a run folder for the world, the index and the attempts; an exception removes it."""
    from sleuth.train.manifest import create_run

    run = create_run(config, folder)
    try:
        yield run
    except BaseException:
        rmtree(run.path)
        raise


def _try(config: Config, run: Run, n: int) -> "tuple[list[ScoredAttempt], TrialReport, Tokens]":
    """Run the attempts as the first step of training would, each on a different question."""
    import torch

    from sleuth.agent.loading import SEARCHES, AgentSpec
    from sleuth.agent.task import Task
    from sleuth.corpus import questions
    from sleuth.gateway.outside import OutsideAgent, check_agent, load_runner
    from sleuth.gateway.trial import report_trial, run_trial
    from sleuth.reward.rubric import Rubric
    from sleuth.train.data import QuestionStream, prepare_sources
    from sleuth.train.ranks import ALONE

    train, rubric = config.train, Rubric(config.reward)
    check_agent(config.agent)
    weights = recipe.resolve_policy(config.model.policy)
    if train.threads:
        torch.set_num_threads(train.threads)
    with TrainingProgress(stderr_console()) as progress, INTERRUPTION.handle_signals():
        sources = prepare_sources(config, run, progress, ALONE)
        stream = QuestionStream.of(config, [questions.load(file) for file in sources.train])
        agent = load_runner(AgentSpec(config.name, config, weights, sources.index, run.path / SEARCHES))
        assert isinstance(agent, OutsideAgent)  # noqa: S101  the config has one
        sampling = (0, 1, train.seed, train.temperature, train.top_p, train.top_k)
        tasks = [Task(question, group, *sampling) for group, question in enumerate(stream.take(0, n))]

        async def attempt_all() -> "list[ScoredAttempt]":
            try:
                return await run_trial(agent, tasks, rubric, config.concurrency, progress.advance)
            finally:
                await agent.engine.close()

        with agent:
            progress.log(f"{config.agent.source} calls the policy at {agent.gateway.url}")
            progress.begin(f"running {n:,} attempts", n)
            started = time.monotonic()
            attempts = run_interruptible(attempt_all())
            seconds = time.monotonic() - started
    return attempts, report_trial(attempts, agent.counts, agent.times, config, seconds), agent.tokens


def _print_transcript(attempts: "Sequence[ScoredAttempt]", tokens: "Tokens") -> None:
    """Print the tokens of the first attempt that called the policy; sampled ones are bold, the others dim."""
    console = Terminal(markup=False, highlight=False)
    chosen = next((each.trajectory for each in attempts if each.calls), None)
    for number, segment in enumerate(chosen.segments if chosen else ()):
        role = f", role {segment.role}" if segment.role else ""
        fork = "" if segment.parent is None else f", after {segment.shared} tokens of segment {segment.parent}"
        console.print(Text(f"--- segment {number}{role}{fork}", style="cyan"))
        start = segment.shared
        for origin, length in run_lengths(segment.sampled[start:]):
            ids = list(segment.ids[start : start + length])
            text = tokens.tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)
            console.print(Text(text, style="bold" if origin == "sampled" else "dim"), end="", soft_wrap=True)
            start += length
        console.print()
    if chosen is not None:
        console.print(Text(f"--- answer {chosen.answer!r}, expected {' or '.join(chosen.question.golden_answers)}\n"))

"""Environments of verifiers as agents: `agent.run = "verifiers:ENV"` trains on their tasks and rewards.

`python -m sleuth.gateway.verifiers_env ENV --out FILE` writes the tasks of an environment as training questions. ENV is
the id of an installed taskset, or a TOML file with the table [env] of verifiers.
"""

import argparse
import asyncio
import copy
import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count, islice
from pathlib import Path
from typing import Any

from sleuth.agent.task import Task
from sleuth.corpus import questions
from sleuth.errors import ConfigError, FunctionFailed, InputError, MissingExtra, UserError
from sleuth.gateway.endpoint import Endpoint
from sleuth.records import Question, Score

try:
    import verifiers.v1 as vf
except ImportError as error:
    raise MissingExtra("verifiers", "verifiers") from error

NO_ANSWER = "-"  # of tasks that do not name one; their reward is the environment's own
_numbers = count()


def load_environment(name: str) -> vf.Env:
    """Load an environment by its id or its TOML file; raises ConfigError if that fails."""
    try:
        settings = tomllib.loads(Path(name).read_text())["env"] if name.endswith(".toml") else {"taskset": {"id": name}}
        return vf.load_environment(vf.resolve_env_config(settings))
    except Exception as error:  # an environment is someone else's program
        raise ConfigError(f"agent.run: the verifiers environment {name!r} cannot be loaded: {error}") from error


class EnvironmentAgent:
    """Runs an episode of an environment for each attempt; the id of a question is the index of its task."""

    def __init__(self, name: str) -> None:
        self._name, self._env = name, load_environment(name)
        self._stream, self._tasks = iter(self._env.taskset), list[vf.Task]()
        # The tool servers that all tasks share, by the event loop that keeps them.
        self._tools: dict[asyncio.AbstractEventLoop, asyncio.Future[dict[str, Any]]] = {}

    async def __call__(self, task: Task, llm: Endpoint) -> Score:
        env = copy.copy(self._env)  # its own interception server: one that is shared keeps a client for each attempt
        tools = await self._shared_tools()
        env.shared_tools = lambda: nullcontext(tools)
        with _key_variable(llm) as variable:
            client = vf.EvalClientConfig(base_url=llm.base_url, api_key_var=variable)
            async with env.serving():
                episode = await env.run_episode(self._task(task.question), vf.ModelContext(llm.model, client))
        return _score(self._name, episode)

    def _task(self, question: Question) -> vf.Task:
        if not question.id.isdecimal():
            raise FunctionFailed(
                f"the question {question.id!r} is not a task of {self._name}; write its tasks with "
                f"python -m sleuth.gateway.verifiers_env {self._name} --out FILE, and train on that file (data.train)"
            )
        number = int(question.id)
        self._tasks += islice(self._stream, max(0, number + 1 - len(self._tasks)))
        if number >= len(self._tasks):
            raise FunctionFailed(f"{self._name} has {len(self._tasks)} tasks, but the question is {question.id}")
        return self._tasks[number]

    async def _shared_tools(self) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        if loop not in self._tools:
            self._tools[loop] = loop.create_future()
            self._keeper = loop.create_task(self._keep_tools(self._tools[loop]))
        return await asyncio.shield(self._tools[loop])

    async def _keep_tools(self, ready: "asyncio.Future[dict[str, Any]]") -> None:
        """Run the tool servers until the event loop ends, which cancels this task."""
        try:
            async with self._env.shared_tools() as tools:
                ready.set_result(tools)
                await asyncio.Event().wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)


@contextmanager
def _key_variable(llm: Endpoint) -> Iterator[str]:
    """Put the key of an attempt into an environment variable, from which verifiers reads it."""
    name = f"SLEUTH_API_KEY_{next(_numbers)}"  # programs do not inherit variables with API_KEY in their names
    os.environ[name] = llm.api_key
    try:
        yield name
    finally:
        del os.environ[name]


def _score(name: str, episode: vf.Episode) -> Score:
    """Return the mean reward of the episode's traces; raises FunctionFailed if the episode failed."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok or not episode.traces:
        reason = f"{errors[-1].type}: {errors[-1].message}" if errors else "it ran no agent"
        raise FunctionFailed(f"an episode of {name} failed: {reason}")
    traces = episode.traces
    parts: dict[str, float] = {}
    for trace in traces:
        for key, reward in trace.rewards.items():
            if reward is not None:
                parts[key] = parts.get(key, 0.0) + reward.value / len(traces)
    return Score(sum(trace.reward for trace in traces) / len(traces), parts)


def task_questions(env: vf.Env) -> Iterator[Question]:
    """Yield a question for each task, with its index as the id."""
    for number, task in enumerate(env.taskset):
        answers = getattr(task.data, "answers", None) or [getattr(task.data, "answer", None) or NO_ANSWER]
        yield Question(str(number), task.data.prompt_text, tuple(map(str, answers)), env.config.env_id)


def main(arguments: list[str] | None = None) -> int:
    """Write the tasks of an environment as questions; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sleuth.gateway.verifiers_env", description=__doc__)
    parser.add_argument("environment", metavar="ENV", help="id of an installed taskset, or a TOML file")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="questions file to write (.jsonl)")
    parser.add_argument("--start", type=int, default=0, help="first task (default: 0)")
    parser.add_argument("--n", type=int, help="number of tasks (default: all)")
    given = parser.parse_args(arguments)
    try:
        env = load_environment(given.environment)
        if given.n is None and not env.taskset.bounded:
            raise InputError(f"{given.environment} has no end; say how many tasks to write with --n")
        stop = None if given.n is None else given.start + given.n
        written = questions.write(given.out, islice(task_questions(env), given.start, stop))
    except UserError as problem:
        sys.stderr.write(f"sleuth: {problem}\n")
        return 2
    sys.stdout.write(f"{given.out}: {written:,} questions\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The agent as a process: 64 clients at once, those who leave, the end, and what cannot be served."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx
import openai
import pytest

from sleuth.agent.loading import AgentOptions, describe_agent
from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox
from sleuth.corpus.questions import CORPUS, TEST
from sleuth.errors import SearchUnavailable
from sleuth.records import Hit, Question, Trajectory
from sleuth.retrieval.index import build
from sleuth.synthesis.world.world import World, write_world

pytestmark = pytest.mark.e2e

COMMAND = "from sleuth.cli.main import main; main()"
CLIENTS = 64
# As in the recipe of the quickstart.
KNOBS = ("agent.prompt=brief", "agent.turn_tokens=64", "agent.observation_tokens=96", "agent.context_tokens=512")
SETTINGS = (*KNOBS, "retrieval.k=1", "engine.slots=32")

Process = subprocess.Popen[str]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encyclopedia with its index and questions."""
    folder = tmp_path_factory.mktemp("agent")
    write_world(World(400, 0), folder / "world", 1, 120)
    build(folder / "world" / CORPUS, folder / "index")
    return folder


@pytest.fixture(scope="module")
def questions(home: Path) -> list[str]:
    """As many as there are clients, all different; those who compare search most."""
    rows = [json.loads(line) for line in (home / "world" / TEST).read_text().splitlines()]
    rows.sort(key=lambda row: row["type"] != "comparison")
    return [row["question"] for row in {row["question"]: row for row in rows}.values()][:CLIENTS]


@contextmanager
def started(home: Path, *words: str, **environment: str) -> Iterator[tuple[Process, str]]:
    """A server in a process of its own, and the address it printed."""
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    command = [sys.executable, "-c", COMMAND, "serve", "agent", "quickstart", "--index", str(home / "index")]
    process = subprocess.Popen(
        [*command, "--port", "0", *settings, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )
    try:
        assert process.stdout
        line = process.stdout.readline()
        found = re.search(r"http://[\d.:]+(?= \()", line)
        assert found, line + process.communicate()[1]
        yield process, found.group()
    finally:
        process.kill()
        process.communicate()


def alone(home: Path, questions: Sequence[str]) -> list[tuple[str | None, int]]:
    """What the agent answers to each question when nobody else asks, and with how many searches."""
    agent = describe_agent("quickstart", AgentOptions(SETTINGS, str(home / "index")), Path("asked.jsonl")).load()

    async def ask() -> list[tuple[str | None, int]]:
        tasks = (Task(Question("asked", question, (), "asked"), temperature=0.0) for question in questions)
        found = [await agent.run(task) for task in tasks]
        return [(trajectory.answer, trajectory.searches) for trajectory in found]

    return asyncio.run(ask())


async def streamed(client: openai.AsyncOpenAI, question: str) -> tuple[str | None, int]:
    """What a stream of chunks adds up to; one that is not whole is an error."""
    text, searches, finish = "", 0, None
    async for chunk in await client.chat.completions.create(
        model="wise", messages=[{"role": "user", "content": question}], stream=True
    ):
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        searches += (choice.delta.model_extra or {}).get("sleuth", {}).get("searches", 0)
        finish = choice.finish_reason or finish
    assert finish in ("stop", "length")
    return (text if finish == "stop" else None), searches


async def all_at_once(address: str, questions: Sequence[str]) -> list[tuple[str | None, int]]:
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="secret", max_retries=0, timeout=60) as client:
        return await asyncio.gather(*(streamed(client, question) for question in questions))


@contextmanager
def stream(address: str, question: str) -> Iterator[Iterator[str]]:
    """The lines of a long answer, of which the first is read: the episode is under way."""
    body = {"messages": [{"role": "user", "content": question}], "stream": True, "temperature": 2.0}
    url, allowed = f"{address}/v1/chat/completions", {"authorization": "Bearer secret"}
    with httpx.stream("POST", url, json=body, headers=allowed, timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        yield lines


def left(address: str, question: str) -> None:
    """A client that hears the first words and leaves."""
    with stream(address, question):
        return


def heard_out(address: str, question: str, all_began: Barrier) -> list[str]:
    """A client that is under way when the server is told to stop, and hears the rest."""
    with stream(address, question) as lines:
        all_began.wait(timeout=30)
        return [line for line in lines if line]


def health(address: str) -> Any:
    return httpx.get(f"{address}/health").json()


def figures(address: str) -> str:
    return httpx.get(f"{address}/metrics", headers={"authorization": "Bearer secret"}).text


def eventually_idle(address: str) -> None:
    until = time.monotonic() + 20
    while health(address)["under_way"]:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_64_streaming_clients_then_those_who_leave_then_the_end(home: Path, questions: list[str]) -> None:
    assert len(questions) == CLIENTS
    words = ("--concurrent", str(CLIENTS), "--token-env", "THE_TOKEN", "--name", "wise")
    with started(home, *words, THE_TOKEN="secret") as (process, address), ThreadPoolExecutor(CLIENTS) as clients:
        expected = alone(home, questions)
        assert asyncio.run(all_at_once(address, questions)) == expected
        list(clients.map(left, [address] * CLIENTS, questions))
        eventually_idle(address)
        assert health(address) == {"status": "ok", "under_way": 0, "waiting": 0, "places": CLIENTS}
        assert "sleuth_disconnects_total 0.0" not in figures(address)
        assert asyncio.run(all_at_once(address, questions)) == expected
        all_began = Barrier(9)
        ends = [clients.submit(heard_out, address, question, all_began) for question in questions[:8]]
        all_began.wait(timeout=30)
        process.send_signal(signal.SIGTERM)
        assert [end.result()[-1] for end in ends] == ["data: [DONE]"] * 8
        assert (process.communicate(timeout=20)[1], process.returncode) == ("", 0)
    # Not one answer for all, and searches among them: else nothing could have been mixed up.
    assert len(set(expected)) > CLIENTS // 2
    assert sum(searches for _, searches in expected) > 10


class Slow:
    """A search engine that finds nothing until it is let."""

    def __init__(self) -> None:
        self.asked, self.open = asyncio.Event(), asyncio.Event()

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        self.asked.set()
        await self.open.wait()
        return [[] for _ in queries]


def test_nobody_waits_for_the_search_of_another(home: Path, questions: list[str]) -> None:
    """The engine of a server goes on while an episode searches, on a CPU too."""
    served = describe_agent("quickstart", AgentOptions(SETTINGS, str(home / "index")), Path("asked.jsonl")).load(
        lockstep=False
    )
    tasks = [Task(Question("asked", question, (), "asked"), temperature=0.0) for question in questions]

    async def ask() -> Trajectory:
        # Which questions the policy answers without a search depends on its weights.
        searches = [bool((await served.run(task)).searches) for task in tasks]
        searching, guessing = tasks[searches.index(True)], tasks[searches.index(False)]
        slow = Slow()
        agent = replace(served, tools=Toolbox(slow, 1))
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(agent.run(searching))
            await slow.asked.wait()
            answered = await agent.run(guessing)
            slow.open.set()
        return answered

    assert asyncio.run(ask()).answer is not None


REFUSED: dict[str, tuple[Sequence[str], str]] = {
    "no index": (["quickstart"], "--index"),
    "an address": (["http://localhost:1/v1", "--index", "x"], "http://localhost:1/v1"),
    "no token": (["quickstart", "--token-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
    "no such setting": (["quickstart", "--set", "train.steps=3"], "train.steps"),
}


@pytest.mark.parametrize(("words", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_served_is_said_in_a_line(
    nursery: Any, tmp_path: Path, words: Sequence[str], sentence: str
) -> None:
    done = nursery.sleuth(tmp_path, "serve", "agent", *words, "--port", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr

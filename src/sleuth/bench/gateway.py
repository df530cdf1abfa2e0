"""Throughput of the gateway with random weights: plain HTTP clients next to the built-in agent, on the same engine.

Both play the same episodes: turns of the planned length, and observations that do not depend on the model. The clients
are `sleuth worker` processes; the time of their calls is broken down into its parts.
"""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import torch
from tokenizers import Tokenizer
from transformers import PretrainedConfig, PreTrainedTokenizerFast

from sleuth.agent import prompts
from sleuth.agent.episode import Agent, Runner, run_batch
from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox
from sleuth.bench.episodes import HITS, PROMPT, Encyclopedia, Plan, forced_protocol, require_full_length, resize
from sleuth.bench.gateway_client import SCRIPT_ENV, SECONDS
from sleuth.bench.measurement import Log, Table, default_device
from sleuth.bench.models import random_policy
from sleuth.config.agent import AgentConfig
from sleuth.corpus import questions as question_files
from sleuth.corpus.questions import CORPUS, TRAIN
from sleuth.engines.paged.engine import PagedEngine
from sleuth.errors import EngineFailure, InputError, SearchUnavailable
from sleuth.gateway.calls import Message
from sleuth.gateway.endpoint import TOKEN_ENV
from sleuth.gateway.outside import OutsideAgent
from sleuth.gateway.prompting import ChatPrompts
from sleuth.gateway.rollout import CallTimes
from sleuth.gateway.server import Gateway
from sleuth.gateway.workers import RemoteWorkers
from sleuth.model.memory import describe_out_of_memory
from sleuth.model.tokens import Tokens
from sleuth.records import Hit, Passage, Question, Trajectory
from sleuth.synthesis.world.world import World, write_world

AGENT = "import:sleuth.bench.gateway_client.search_agent"
OBSERVATIONS = 512  # distinct ones
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_TOKENS = ["<|im_start|>", "<|im_end|>"]
TEMPLATE_TOKENS = 64  # of a chat template around an observation, at most
AGENTS = BUILT_IN, CLIENTS = "built-in agent", "HTTP clients"
HTTP_SERVER = "http server"  # name of its thread
HTTP_THREAD, LOOP_THREAD, ENGINE_THREADS = "HTTP server", "event loop", "engine"
# Parts of a call in their order, as its client sees them; they add up to its time.
PARTS = {
    "http": "connection, HTTP and the client",
    "parse": "parse the request",
    "threads": "pass it to the engine's loop and back",
    "prompt": "build the prompt",
    "generate": "generate",
    "record": "record the tokens",
    "encode": "encode the response",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Episodes of one agent; `cpu` has CPU seconds by thread, `parts` the seconds of all calls by part."""

    agent: str
    seconds: float
    trajectories: int
    calls: int
    tokens: int
    sampled: int
    cpu: Mapping[str, float]
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.trajectories / self.seconds

    def __add__(self, other: "Measured") -> "Measured":
        return Measured(
            agent=self.agent,
            seconds=self.seconds + other.seconds,
            trajectories=self.trajectories + other.trajectories,
            calls=self.calls + other.calls,
            tokens=self.tokens + other.tokens,
            sampled=self.sampled + other.sampled,
            cpu={name: value + other.cpu[name] for name, value in self.cpu.items()},
            parts={name: value + other.parts[name] for name, value in self.parts.items()},
        )


@dataclass(frozen=True, slots=True)
class Shelf:
    """A retriever that returns passages chosen by the query, in no time."""

    passages: Sequence[Passage]

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        return [[Hit(self._passage(query, rank), 1.0 / (rank + 1)) for rank in range(k)] for query in queries]

    def _passage(self, query: str, rank: int) -> Passage:
        return self.passages[crc32(f"{query} {rank}".encode()) % len(self.passages)]


def full_vocabulary(tokens: Tokens, size: int) -> Tokens:
    """Copy a tokenizer so that every id below `size` decodes to some text, and with a chat template.

    A random model samples all ids. Without this, most replies of a large shape would be empty.
    """
    old = tokens.tokenizer
    added = [] if old.chat_template else CHATML_TOKENS
    content = json.loads(old.backend_tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    known = {*vocabulary.values(), *(each["id"] for each in content["added_tokens"])}
    vocabulary |= {f"\u0120w{token}": token for token in range(size - len(added)) if token not in known}
    new = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        eos_token=old.eos_token,
        bos_token=old.bos_token,
        pad_token=old.pad_token,
        chat_template=old.chat_template or CHATML,
    )
    new.add_special_tokens({"additional_special_tokens": added})
    return Tokens(new)


def generated_shelf(plan: Plan) -> tuple[list[Question], Shelf]:
    """Generate questions and passages without an index."""
    with TemporaryDirectory() as scratch:
        world = Path(scratch, "world")
        write_world(World(plan.passages, 0), world, plan.total_questions, 1)
        rows = (json.loads(line) for line in (world / CORPUS).read_text(encoding="utf-8").splitlines())
        passages = [Passage(row["id"], row["contents"]) for row in rows]
        return question_files.load(world / TRAIN), Shelf(passages)


@dataclass(frozen=True, slots=True)
class Bench:
    """Both agents on one engine; `questions` carry their prompts, so that both send the same."""

    plan: Plan
    questions: Sequence[Question]
    engine: PagedEngine
    built_in: Agent
    outside: OutsideAgent

    async def measure(self, agent: str, questions: Sequence[Question], step: int) -> Measured:
        plan, times = self.plan, self.outside.times
        tasks = [Task(each, group, n, step) for group, each in enumerate(questions) for n in range(plan.samples)]
        runner: Runner = self.built_in if agent == BUILT_IN else self.outside
        before, cpu, start = replace(times), cpu_seconds(), time.monotonic()
        trajectories = await run_batch(runner, tasks, plan.slots)
        seconds = time.monotonic() - start
        used = {name: value - cpu.get(name, 0.0) for name, value in cpu_seconds().items()}
        require_full_length(trajectories, plan)
        if any(len(each.segments) != 1 for each in trajectories):
            raise EngineFailure("an episode of the HTTP clients has several segments, expected one")
        return Measured(
            agent=agent,
            seconds=seconds,
            trajectories=len(trajectories),
            calls=sum(len(each.turns) for each in trajectories),
            tokens=sum(len(each.ids) for each in trajectories),
            sampled=sum(len(each.logprobs) for each in trajectories),
            cpu=used,
            parts={} if agent == BUILT_IN else call_parts(trajectories, before, times),
        )


def call_parts(trajectories: Sequence[Trajectory], before: CallTimes, after: CallTimes) -> dict[str, float]:
    """Return the seconds of all calls by part, in the order of PARTS."""
    spent = {name: value - getattr(before, name) for name, value in asdict(after).items()}
    client = sum(each.reward.parts[SECONDS] for each in trajectories if each.reward is not None)
    spent["threads"] = spent["wait"] - spent["prompt"] - spent["generate"] - spent["record"]
    spent["http"] = client - spent["parse"] - spent["wait"] - spent["encode"]
    return {name: spent[name] for name in PARTS}


def cpu_seconds() -> dict[str, float]:
    """Return the CPU time of the threads of this process by their task; zero where the system does not tell."""
    found = dict.fromkeys((HTTP_THREAD, LOOP_THREAD, ENGINE_THREADS), 0.0)
    if not hasattr(time, "pthread_getcpuclockid"):  # macOS
        return found
    for thread in threading.enumerate():
        others = LOOP_THREAD if thread is threading.current_thread() else ENGINE_THREADS
        name = HTTP_THREAD if thread.name == HTTP_SERVER else others
        if thread.ident is not None:
            found[name] += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return found


class ClientProcesses(RemoteWorkers):
    """Launcher whose workers run the scripted client; they have `clients` slots in all."""

    def __init__(self, script: Path, clients: int, processes: int) -> None:
        self._token = secrets.token_urlsafe()
        super().__init__(self._token)
        self._script, self._processes = script, list[subprocess.Popen[bytes]]()
        self._shares = [clients // processes + (number < clients % processes) for number in range(processes)]

    def start(self, url: str) -> None:
        environment = {**os.environ, TOKEN_ENV: self._token, SCRIPT_ENV: str(self._script)}
        command = [sys.executable, "-m", "sleuth.gateway.worker", "--gateway", url, "--agent", AGENT]
        command += ["--parent", str(os.getpid()), "--concurrency"]
        for share in filter(None, self._shares):
            self._processes.append(subprocess.Popen([*command, str(share)], env=environment))  # noqa: S603 (our own)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def write_script(path: Path, plan: Plan, shelf: Shelf, tokens: Tokens) -> None:
    """Write what the clients send: observations that have the planned length with the chat template around them."""
    chat, user, assistant = ChatPrompts(tokens), Message("user", "?"), Message("assistant", "?")
    frame = len(chat.encode((user, assistant, user), ())) - len(chat.encode((user,), ()))
    texts = (shelf.passages[number % len(shelf.passages)].text for number in range(OBSERVATIONS))
    observations = [resize(text, max(1, plan.observation_tokens - frame), tokens) for text in texts]
    path.write_text(json.dumps({"searches": plan.searches, "observations": observations}), encoding="utf-8")


@contextmanager
def assembled_bench(
    shape: PretrainedConfig, tokens: Tokens, plan: Plan, processes: int, device: torch.device
) -> Iterator[Bench]:
    """Assemble the engine, both agents and the clients; the engine must be closed by the caller."""
    tokens = full_vocabulary(tokens, shape.vocab_size)
    questions, shelf = generated_shelf(plan)
    protocol, context = forced_protocol(shape, tokens, plan, Encyclopedia(questions, shelf))
    context = min(context + TEMPLATE_TOKENS * plan.searches, shape.max_position_embeddings)
    policy = random_policy(shape, tokens, device)
    # Without a tokenizer there is no end-of-text token.
    engine = PagedEngine(policy.model, None, slots=plan.slots, context=context + 1, memory=plan.engine_memory)
    limits = AgentConfig(
        prompt=PROMPT,
        searches=plan.searches,
        turn_tokens=plan.turn_tokens,
        observation_tokens=plan.observation_tokens,
        context_tokens=context,
    )
    toolbox = Toolbox(shelf, HITS)
    with TemporaryDirectory() as scratch:
        script = Path(scratch, "script.json")
        write_script(script, plan, shelf, tokens)
        launcher = ClientProcesses(script, plan.slots, processes)
        gateway = Gateway(routes=launcher.routes)
        with OutsideAgent(engine, tokens, toolbox, limits, gateway, launcher) as outside:
            asked = [replace(each, prompt=prompts.messages(each, PROMPT, protocol)) for each in questions]
            yield Bench(plan, asked, engine, Agent(engine, tokens, protocol, toolbox, limits), outside)


def measure(shape: PretrainedConfig, tokens: Tokens, plan: Plan, processes: int, log: Log) -> list[Measured]:
    """Measure both agents in turn, `plan.steps` times each after a warm-up, and return their totals."""
    doubled = replace(plan, warmup=2 * plan.warmup, steps=2 * plan.steps)  # no question is asked twice
    try:
        return asyncio.run(_measure(shape, tokens, doubled, processes, log))
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"the episodes need more memory than the GPU has ({describe_out_of_memory(error)}); "
            "lower --engine-memory or --clients"
        ) from error


async def _measure(shape: PretrainedConfig, tokens: Tokens, plan: Plan, processes: int, log: Log) -> list[Measured]:
    totals: dict[str, Measured] = {}
    with assembled_bench(shape, tokens, plan, processes, default_device()) as bench:
        questions = iter(bench.questions)
        try:
            for agent in AGENTS if plan.warmup else ():
                warmup = await bench.measure(agent, list(islice(questions, plan.warmup // 2)), 0)
                log(f"warm-up, {agent}: {warmup.seconds:.1f} s")
            for step in range(plan.steps):
                agent = AGENTS[step % len(AGENTS)]
                found = await bench.measure(agent, list(islice(questions, plan.questions)), step + 1)
                log(f"{agent}: {found.rate:.1f} trajectories/s")
                totals[agent] = totals[agent] + found if agent in totals else found
        finally:
            await bench.engine.close()
    return [totals[agent] for agent in AGENTS]


def ratio(measured: Sequence[Measured]) -> float:
    built_in, clients = measured
    return clients.rate / built_in.rate


def markdown(name: str, plan: Plan, processes: int, measured: Sequence[Measured]) -> str:
    """Format the throughput of both agents, and the parts of a call."""
    built_in, clients = measured
    title = (
        f"{name}: {plan.slots} episodes at once, {clients.trajectories:,} in all, {plan.searches} observations, "
        f"{plan.sampled} sampled tokens each, {processes} client processes"
    )
    figures = ("agent", "trajectories/s", "share", "sampled tokens/s", "tokens per trajectory")
    header = (*figures, *(f"CPU, {thread}" for thread in clients.cpu))
    rows = [
        (
            each.agent,
            each.rate,
            f"{each.rate / built_in.rate:.0%}",
            each.sampled / each.seconds,
            f"{each.tokens / each.trajectories:.0f}",
            *(f"{seconds / each.seconds:.0%}" for seconds in each.cpu.values()),
        )
        for each in measured
    ]
    whole = sum(clients.parts.values())
    parts = [
        (PARTS[part], 1e3 * seconds / clients.calls, f"{seconds / whole:.1%}")
        for part, seconds in clients.parts.items()
    ]
    parts.append(("whole call", 1e3 * whole / clients.calls, "100%"))
    calls = Table("A call as its client sees it, mean", ("part", "ms", "share"), parts)
    return f"{Table(title, header, rows).markdown()}\n\n{calls.markdown()}"


def record(name: str, plan: Plan, processes: int, measured: Sequence[Measured]) -> dict[str, Any]:
    agents = [{**asdict(each), "rate": each.rate} for each in measured]
    return {"shape": name, "plan": asdict(plan), "processes": processes, "agents": agents, "ratio": ratio(measured)}

"""Generation speed: the embedded engine and vLLM run the same episodes, one after the other on the same machine."""

import asyncio
import gc
import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep
from typing import Any, Protocol

import torch
from transformers import PretrainedConfig

from sleuth.bench import vllm_worker
from sleuth.bench.measurement import Log, Table, release_memory
from sleuth.bench.models import random_model
from sleuth.bench.workloads import Episode, Job
from sleuth.engines.base import Engine, Sampling
from sleuth.engines.paged.engine import PagedEngine
from sleuth.errors import EngineFailure, InputError

WARMUP_TOKENS = 8
MARGIN = 16  # extra context tokens for engines that allocate whole pages, or a slot after the last token
ANSWER_TIMEOUT = 900.0
EXIT_TIMEOUT = 10.0
SHUTDOWN_TIMEOUT = 30.0
SHOWN_LINES = 30


class Player(Protocol):
    def seconds(self, episodes: Sequence[Episode]) -> float: ...


@dataclass(frozen=True, slots=True)
class Rates:
    sampled: int
    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        return self.sampled / min(self.seconds)

    @property
    def spread(self) -> str:
        """Relative difference between the slowest and the fastest repetition."""
        return f"{1 - min(self.seconds) / max(self.seconds):.1%}"


@dataclass(frozen=True, slots=True)
class Row:
    """One job on one shape; `theirs` is the reason if vLLM produced no result."""

    shape: str
    job: Job
    ours: Rates
    theirs: Rates | str

    @property
    def ratio(self) -> float | str:
        return self.ours.best / self.theirs.best if isinstance(self.theirs, Rates) else "-"


@dataclass(frozen=True, slots=True)
class Peer:
    """The Python interpreter of an environment with vLLM, and settings that override `best_settings`."""

    python: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Theirs:
    """Results of vLLM in job order, and the reason if any is missing."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    rates: list[Rates] = field(default_factory=list)
    absence: str = ""
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    rows: list[Row]
    theirs: Theirs


def compare(
    name: str,
    shape: PretrainedConfig,
    jobs: Sequence[Job],
    *,
    repetitions: int,
    peer: Peer | None,
    settings: Mapping[str, Any],
    log: Log,
) -> Comparison:
    """Run every job on one shape, vLLM first, because its memory is free once its process has ended."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    slots, context = max(job.concurrent for job in jobs), max(job.context for job in jobs) + MARGIN

    def measure(who: str, player: Player) -> Iterator[Rates]:
        """Yield the rates of every job after a warm-up; both engines get the same random tokens."""
        random, vocabulary = Random(0), int(shape.vocab_size)
        for job in jobs:
            player.seconds(job.shortened(WARMUP_TOKENS).episodes(vocabulary, random))
            seconds = []
            for _ in range(repetitions):
                episodes = job.episodes(vocabulary, random)
                gc.collect()
                seconds.append(player.seconds(episodes))
            rates = Rates(job.sampled, tuple(seconds))
            log(f"{name}, {job.workload}, {job.concurrent} concurrent, {who}: {rates.best:,.0f} tokens/s")
            yield rates

    theirs = Theirs(absence="not requested")
    if peer is not None:
        theirs = Theirs({**best_settings(slots, context), **peer.settings})
        try:
            with open_vllm(shape, theirs.settings, peer.python) as other:
                if other is None:
                    theirs = Theirs(absence="not installed")
                else:
                    theirs.version = other.version
                    theirs.rates.extend(measure("vLLM", other))
        except EngineFailure as failure:
            log(str(failure))
            theirs.absence, theirs.failure = "failed", str(failure)
    with open_embedded(shape, slots, context, device, settings) as ours:
        rates = list(measure("ours", ours))
    others: list[Rates | str] = [*theirs.rates, *[theirs.absence] * (len(jobs) - len(theirs.rates))]
    rows = [Row(name, job, mine, other) for job, mine, other in zip(jobs, rates, others, strict=True)]
    return Comparison(rows, theirs)


def best_settings(slots: int, context: int) -> dict[str, Any]:
    """vLLM's fastest settings for rollouts; its defaults capture no CUDA graphs above 512 sequences."""
    return {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16" if torch.cuda.is_available() else "float32",
        "max_model_len": context,
        "max_num_seqs": slots,
        "max_num_batched_tokens": 16_384,
        "max_cudagraph_capture_size": max(512, slots),
        "gpu_memory_utilization": 0.85,
        "async_scheduling": True,
    }


def table(rows: Sequence[Row], sizes: str, repetitions: int) -> Table:
    cells = []
    for row in rows:
        theirs = (row.theirs.best, row.theirs.spread) if isinstance(row.theirs, Rates) else (row.theirs, "-")
        job = (row.shape, row.job.workload.value, row.job.concurrent)
        cells.append((*job, row.ours.best, row.ours.spread, *theirs, row.ratio))
    return Table(
        f"Sampled tokens per second, {sizes}, random weights, logprobs on, best of {repetitions}",
        ("shape", "workload", "concurrent", "ours", "spread", "vLLM", "spread", "times as fast"),
        cells,
    )


class EmbeddedPlayer:
    def __init__(self, engine: Engine, loop: asyncio.Runner) -> None:
        self._engine: Engine | None = engine
        self._loop = loop

    def seconds(self, episodes: Sequence[Episode]) -> float:
        if self._engine is None:
            raise EngineFailure("the engine is closed; create a new one")
        return self._loop.run(_play_all(self._engine, episodes))

    def close(self) -> None:
        if self._engine is not None:
            self._loop.run(self._engine.close())
        self._engine = None


@contextmanager
def open_embedded(
    shape: PretrainedConfig, slots: int, context: int, device: torch.device, settings: Mapping[str, Any]
) -> Iterator[EmbeddedPlayer]:
    """Create the embedded engine with a new model; the memory of both is released on exit."""
    with asyncio.Runner() as loop:
        engine = PagedEngine(random_model(shape, device), None, slots=slots, context=context, **settings)
        player = EmbeddedPlayer(engine, loop)
        del engine
        try:
            yield player
        finally:
            player.close()
            release_memory(device)


async def _play_all(engine: Engine, episodes: Sequence[Episode]) -> float:
    start = perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for number, episode in enumerate(episodes):
                group.create_task(_play(engine, number, episode))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from several  # the first failure cancelled the others
    return perf_counter() - start


async def _play(engine: Engine, number: int, episode: Episode) -> None:
    ids: list[int] = []
    with engine.session(number) as session:
        for order, turn in enumerate(episode):
            ids += turn.given
            sampling = Sampling(turn.sampled, seed=number * len(episode) + order)
            completion = await engine.generate(ids, sampling, session)
            if len(completion.logprobs) != turn.sampled:
                raise EngineFailure(f"{len(completion.logprobs)} tokens were sampled, expected {turn.sampled}")
            ids += completion.ids


class VllmPlayer:
    """vLLM in a separate process, which runs `vllm_worker`."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process, self._log = process, log
        self.version = ""

    def seconds(self, episodes: Sequence[Episode]) -> float:
        answer = self.send([[(turn.given, turn.sampled) for turn in episode] for episode in episodes])
        expected = sum(turn.sampled for episode in episodes for turn in episode)
        if answer["sampled"] != expected:
            raise EngineFailure(f"vLLM sampled {answer['sampled']} tokens, expected {expected}")
        return float(answer["seconds"])

    def send(self, message: object) -> dict[str, Any]:
        assert self._process.stdin  # noqa: S101  a Popen with pipes
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        answer: dict[str, Any] = json.loads(self._read_line())
        return answer

    def output(self) -> list[str]:
        return [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]

    def _read_line(self) -> str:
        """Read the next line, polling for the end of the process, whose children may keep the pipe open."""
        assert self._process.stdout  # noqa: S101
        end = monotonic() + ANSWER_TIMEOUT
        while monotonic() < end:
            ended = self._process.poll() is not None
            if select.select([self._process.stdout], [], [], 0.0 if ended else 0.5)[0]:
                if line := self._process.stdout.readline():
                    return line
                break
            if ended:
                break
        raise self._failure()

    def _failure(self) -> EngineFailure:
        with suppress(subprocess.TimeoutExpired):  # the pipes close a moment before the process ends
            self._process.wait(EXIT_TIMEOUT)
        code = self._process.poll()
        reason = f"did not answer within {ANSWER_TIMEOUT:g} s" if code is None else f"exited with code {code}"
        return EngineFailure(
            "\n".join((f"vLLM {reason}; its last output:", *(self.output()[-SHOWN_LINES:] or ["none"])))
        )


@contextmanager
def open_vllm(shape: PretrainedConfig, settings: Mapping[str, Any], python: str) -> Iterator[VllmPlayer | None]:
    """Start vLLM with random weights in a shape; yields None if vLLM is not installed."""
    # -P: do not import modules from the folder of the script, which are ours.
    command, pipe = [python, "-P", str(vllm_worker.__file__)], subprocess.PIPE
    with TemporaryDirectory() as scratch:
        log, model = Path(scratch, "log"), Path(scratch, "model")
        shape.save_pretrained(model)
        with log.open("w") as output:
            try:
                process = subprocess.Popen(  # noqa: S603
                    command, stdin=pipe, stdout=pipe, stderr=output, text=True, start_new_session=True
                )
            except OSError as error:
                remedy = "pass the Python interpreter of an environment with vLLM"
                raise InputError(f"{python} cannot be run ({error}); {remedy}") from None
        try:
            player = VllmPlayer(process, log)
            version = player.send({"model": str(model), "settings": settings})["version"]
            player.version = version or ""
            yield player if version else None
            # At the end of its input the worker exits and stops its own children.
            assert process.stdin  # noqa: S101
            with suppress(BrokenPipeError):
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(SHUTDOWN_TIMEOUT)
        finally:
            _kill_group(process)


def _kill_group(process: "subprocess.Popen[str]") -> None:
    """Kill the process group and wait until it has ended, so that its GPU memory is free."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            stream.close()  # type: ignore[union-attr]
    end = monotonic() + EXIT_TIMEOUT
    with suppress(ProcessLookupError):
        while monotonic() < end:
            os.killpg(process.pid, 0)
            sleep(0.02)

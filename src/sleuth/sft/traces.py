"""Trace files: JSONL of conversations or trajectories, converted to training rows.

Suffixes: L tokens of a trace.
"""

import gc
import json
import os
import signal
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sleuth.agent import protocol
from sleuth.corpus.jsonl import open_text, parse_question_line, text_lines
from sleuth.errors import ConfigError, InputError, TrainingStopped
from sleuth.model.tokens import Tokens
from sleuth.records import run_lengths
from sleuth.runs.atomic import atomic_write
from sleuth.runs.json_files import read_json
from sleuth.runs.trajectory import unsupported_version
from sleuth.sft.conversation import EXPECTED, ConversationEncoder, Source, validate_messages
from sleuth.sft.settings import SFTConfig
from sleuth.train.observer import RunObserver

FORMATS = f"{EXPECTED}, or a row of a run's trajectories"
MIN_PROGRESS = 1000  # minimum number of traces to show progress
BATCH = 256  # lines per worker task
MIN_PARALLEL = 8192  # minimum number of traces to start workers
MAX_WORKERS = 12  # more workers would wait for this process, which distributes lines and collects traces
LineBatch = tuple[Path, Sequence[tuple[int, str]]]  # numbered lines of a file


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Tokens with loss weights, and the question, which decides whether the trace is held out.

    Uses arrays instead of tensors, so that worker processes do not load torch.
    """

    ids_L: NDArray[np.int32]
    weights_L: NDArray[np.float32]
    question: str


@dataclass(slots=True)
class TraceSet:
    """Traces, with counts of skipped and truncated traces by reason."""

    traces: list[Trace] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    truncated: Counter[str] = field(default_factory=Counter)
    has_rewards: bool = False
    lines: int = 0

    def extend(self, other: "TraceSet") -> None:
        self.traces += other.traces
        self.skipped += other.skipped
        self.truncated += other.truncated
        self.has_rewards |= other.has_rewards
        self.lines += other.lines

    def summary(self) -> str:
        parts = [f"{len(self.traces):,} traces"]
        for label, counts in (("skipped", self.skipped), ("truncated", self.truncated)):
            if counts:
                parts.append(f"{label}: " + ", ".join(f"{count:,} {reason}" for reason, count in counts.items()))
        return "; ".join(parts)


class TraceParser:
    """Parses lines into traces for one model."""

    def __init__(self, tokens: Tokens, vocabulary_size: int | None, settings: SFTConfig) -> None:
        self._tokens, self._settings = tokens, settings
        self._encoder = ConversationEncoder(
            tokens, protocol.make_protocol(settings.protocol, tokens), settings.observation_tokens
        )
        self._vocabulary_size = len(tokens.tokenizer) if vocabulary_size is None else vocabulary_size
        self._weights = {Source.PROMPT: 0.0, Source.ASSISTANT: 1.0, Source.OBSERVATION: settings.observation_weight}

    def parse(self, batch: LineBatch) -> TraceSet:
        """Parse a batch; raises InputError for the first invalid line."""
        path, lines = batch
        result = TraceSet(lines=len(lines))
        # Traces have no reference cycles, and searching for cycles takes a tenth of the time.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            for number, line in lines:
                try:
                    self._parse_row(parse_question_line(line), result)
                except ValueError as error:
                    raise InputError(f"{path}, line {number}: {error}; expected {FORMATS}") from error
        finally:
            if was_enabled:
                gc.enable()
        return result

    def _parse_row(self, row: Mapping[str, Any], result: TraceSet) -> None:
        if "messages" not in row:
            segments = row.get("segments", [row])
            if not isinstance(segments, list) or not all(_has_tokens(each) for each in segments):
                raise ValueError(f"unknown row format with the keys {', '.join(list(row)[:6]) or 'none'}")
            self._parse_trajectory(row, segments, result)
            return
        messages = validate_messages(row)
        pieces = list(self._encoder.encode(messages))
        ids = [token for piece in pieces for token in piece.ids]
        weights_L = np.repeat([self._weights[piece.source] for piece in pieces], [len(piece.ids) for piece in pieces])
        if truncated := sum(piece.truncated for piece in pieces):
            result.truncated["observations"] += truncated
        question = next((each["content"] for each in messages if each["role"] == "user"), "")
        self._add(ids, weights_L, str(row.get("question_id", question)), result)

    def _parse_trajectory(
        self, row: Mapping[str, Any], segments: Sequence[Mapping[str, Any]], result: TraceSet
    ) -> None:
        if problem := unsupported_version(row):
            raise ValueError(problem)
        tokens = [self._tokens_of(each) for each in segments]
        result.has_rewards = True
        minimum = self._settings.min_reward
        match row.get("score"):
            case None:
                result.skipped["unusable"] += 1
            case {"total": float() | int() as reward} if minimum is not None and reward < minimum:
                result.skipped[f"with a reward below {minimum:g}"] += 1
            case {"total": float() | int()}:
                for ids, sampled in tokens:
                    self._add(ids, self._trajectory_weights(sampled), str(row.get("question_id")), result)
            case other:
                raise ValueError(f"score is {str(other)[:60]!r}; expected null or an object with total")

    def _trajectory_weights(self, sampled: Sequence[bool]) -> NDArray[np.float64]:
        first = sampled.index(True) if True in sampled else len(sampled)
        context = [Source.OBSERVATION if index > first else Source.PROMPT for index in range(len(sampled))]
        sources = [Source.ASSISTANT if own else each for own, each in zip(sampled, context, strict=True)]
        return np.array([self._weights[each] for each in sources])

    def _tokens_of(self, row: Mapping[str, Any]) -> tuple[list[int], list[bool]]:
        """Return the tokens of a trajectory or of one of its segments, and whether each was sampled."""
        ids, origin = row["ids"], row["origin"]
        if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
            raise ValueError("ids must be a list of token ids")
        try:
            sampled = [kind == "sampled" for kind, count in origin for _ in range(count)]
        except (TypeError, ValueError):
            sampled = []
        if len(sampled) != len(ids) or [list(run) for run in run_lengths(sampled)] != origin:
            raise ValueError(f"origin must be runs of given and sampled tokens, {len(ids)} in total")
        if max(ids, default=0) >= self._vocabulary_size:
            raise ValueError(
                f"token {max(ids)} exceeds the vocabulary of {self._vocabulary_size:,}: another model sampled it"
            )
        # If the first turn does not decode to its text, the tokens come from another tokenizer.
        match row.get("turns"):
            case [{"text": str(text)}, *_] if True in sampled:
                start = sampled.index(True)
                end = sampled.index(False, start) if False in sampled[start:] else len(sampled)
                if not self._tokens.decode(ids[start:end]).startswith(text):
                    raise ValueError("the tokens do not decode to the text of their turn: another tokenizer was used")
        return ids, sampled

    def _add(self, ids: list[int], weights_L: NDArray[np.float64], question: str, result: TraceSet) -> None:
        limit = self._settings.row_tokens
        is_overlong = len(ids) > limit
        if is_overlong and self._settings.overlong == "drop":
            result.skipped[f"longer than {limit:,} tokens"] += 1
            return
        weights_L = weights_L[:limit]
        weights_L[:1] = 0.0  # nothing precedes the first token
        if 1.0 not in weights_L:
            result.skipped["without tokens of the model"] += 1
            return
        if is_overlong:
            result.truncated["traces"] += 1
        result.traces.append(Trace(np.array(ids[:limit], dtype=np.int32), weights_L.astype(np.float32), question))


def _has_tokens(row: object) -> bool:
    return isinstance(row, dict) and "ids" in row and "origin" in row


def write_traces(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Atomically write a trace file, compressed if its name ends in .gz; return the number of rows."""
    count = 0
    with atomic_write(path) as temporary, open_text(temporary, "w") as file:
        for count, row in enumerate(rows, 1):  # noqa: B007  returned
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    return count


def read_traces(
    model: Path, files: Sequence[Path], settings: SFTConfig, observer: RunObserver, *, workers: int | None = None
) -> TraceSet:
    """Read all traces for a model folder; raises InputError for an invalid line, or if no trace is usable.

    `workers` is the number of worker processes; by default it depends on the number of traces and cores.
    """
    counts = {path: sum(not line.isspace() for line in text_lines(path, "trace file")) for path in files}
    if empty := next((path for path, count in counts.items() if not count), None):
        raise InputError(f"{empty} has no traces; expected {FORMATS} on each line")
    total = sum(counts[path] for path in files)
    if total > MIN_PROGRESS:
        observer.begin("reading traces", total)
    batches = (batch for path in files for batch in _line_batches(path))
    count = worker_count(total, len(os.sched_getaffinity(0))) if workers is None else workers
    in_process = map(_parser(model, settings).parse, batches) if not count else None
    result = TraceSet()
    for part in in_process or _parse_parallel(model, settings, batches, count):
        result.extend(part)
        observer.advance(part.lines)
    if settings.min_reward is not None and not result.has_rewards:
        raise ConfigError("--min-reward has no effect: traces of messages have no reward; remove it")
    if not result.traces:
        raise InputError(
            f"no usable traces in {', '.join(map(str, files))}: {result.summary()}; give other traces, such as shorter "
            "ones, raise --row-tokens, or use --overlong cut or a lower --min-reward"
        )
    return result


def worker_count(total: int, cores: int) -> int:
    """Return the number of workers for `total` traces: 0 for few, at most three quarters of the cores."""
    count = min(cores * 3 // 4, MAX_WORKERS)
    return count if total >= MIN_PARALLEL and count > 1 else 0


def _line_batches(path: Path) -> Iterator[LineBatch]:
    numbered = ((number, line) for number, line in enumerate(text_lines(path, "trace file"), 1) if not line.isspace())
    while lines := tuple(islice(numbered, BATCH)):
        yield path, lines


def _parser(model: Path, settings: SFTConfig) -> TraceParser:
    size = read_json(model / "config.json").get("vocab_size")
    return TraceParser(Tokens.load(model), size if isinstance(size, int) else None, settings)


def _parse_parallel(model: Path, settings: SFTConfig, batches: Iterable[LineBatch], workers: int) -> Iterator[TraceSet]:
    """Parse batches in worker processes, in order."""
    # Spawned, because a forked process with threads can deadlock. Each worker loads the tokenizer itself: pickling it
    # would serialize their start.
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (model, settings)) as pool:
        pending: deque[Future[TraceSet]] = deque()
        try:
            for batch in batches:
                pending.append(pool.submit(_parse_in_worker, batch))
                if len(pending) > 3 * workers:  # bounds the lines in memory
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise TrainingStopped(
                "a worker process that read traces died, perhaps out of memory; free some memory and try again"
            ) from error


_WORKER_PARSER: list[TraceParser] = []  # the parser of a worker process


def _start_worker(model: Path, settings: SFTConfig) -> None:
    """Leave Ctrl-C to the parent process, and use one tokenizer thread per worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _WORKER_PARSER.append(_parser(model, settings))


def _parse_in_worker(batch: LineBatch) -> TraceSet:
    return _WORKER_PARSER[0].parse(batch)

"""Trace files: JSONL of conversations and of trajectories, read as rows to train on.

Suffixes: L tokens of a trace.
"""

import gc
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sleuth.agent import protocol
from sleuth.corpus.jsonl import open_text, parse_question_line
from sleuth.errors import InputError
from sleuth.model.tokens import Tokens
from sleuth.records import run_lengths
from sleuth.runs.atomic import atomic_write
from sleuth.runs.trajectory import unsupported_version
from sleuth.sft.conversation import EXPECTED, Conversations, Voice, checked
from sleuth.sft.settings import SFTConfig

TRAJECTORY = ("ids", "origin")
FORMS = f"{EXPECTED}, or a row of a run's trajectories"


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Tokens to train on and the weight of each, and the question it is about: what is held out is so by question.

    No tensors: processes that read traces load no torch.
    """

    ids_L: NDArray[np.int32]
    weights_L: NDArray[np.float32]
    question: str


@dataclass(slots=True)
class Reading:
    """What was read: the traces, and how many were left out or cut, by reason."""

    traces: list[Trace] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    scored: bool = False  # whether one of them had a reward
    lines: int = 0

    def add(self, other: "Reading") -> None:
        """What was read after this."""
        self.traces += other.traces
        self.left_out += other.left_out
        self.cut += other.cut
        self.scored |= other.scored
        self.lines += other.lines

    def sentence(self) -> str:
        """What a person should know of it."""
        parts = [f"{len(self.traces):,} traces"]
        if self.left_out:
            parts.append("left out: " + ", ".join(f"{count:,} {why}" for why, count in self.left_out.items()))
        if self.cut:
            parts.append("cut: " + ", ".join(f"{count:,} {what}" for what, count in self.cut.items()))
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines of a file, with their numbers."""

    path: Path
    lines: Sequence[tuple[int, str]]


class Reader:
    """Makes traces of lines for one model."""

    def __init__(self, tokens: Tokens, vocabulary: int | None, settings: SFTConfig) -> None:
        grammar = protocol.make_protocol(settings.protocol, tokens)
        self._tokens = tokens
        self._conversations = Conversations(tokens, grammar, settings.observation_tokens)
        self._vocabulary = len(tokens.tokenizer) if vocabulary is None else vocabulary
        self._settings = settings
        self._weights = {Voice.GIVEN: 0.0, Voice.SPOKEN: 1.0, Voice.SHOWN: settings.observation_weight}

    def read(self, batch: Batch) -> Reading:
        """The traces of lines; the first that is bad is an InputError."""
        reading = Reading(lines=len(batch.lines))
        with _uncollected():
            for number, line in batch.lines:
                try:
                    self._row(parse_question_line(line), reading)
                except ValueError as error:
                    raise InputError(f"{batch.path}, line {number}: {error}; a line looks like {FORMS}") from error
        return reading

    def _row(self, content: Mapping[str, Any], reading: Reading) -> None:
        if "messages" in content:
            self._conversation(content, reading)
        elif all(name in content for name in TRAJECTORY):
            self._trajectory(content, reading)
        else:
            raise ValueError(f"unknown form of row, with the keys {', '.join(list(content)[:6]) or 'none'}")

    def _conversation(self, content: Mapping[str, Any], reading: Reading) -> None:
        messages = checked(content)
        pieces = list(self._conversations.pieces(messages))
        ids = [token for piece in pieces for token in piece.ids]
        weights_L = np.repeat([self._weights[piece.voice] for piece in pieces], [len(piece.ids) for piece in pieces])
        if cut := sum(piece.cut for piece in pieces):
            reading.cut["observations"] += cut
        asked = next((each["content"] for each in messages if each["role"] == "user"), "")
        self._keep(ids, weights_L, str(content.get("question_id", asked)), reading)

    def _trajectory(self, content: Mapping[str, Any], reading: Reading) -> None:
        if problem := unsupported_version(content):
            raise ValueError(problem)
        ids, sampled = self._tokens_of(content)
        reading.scored = True
        reward, least = _reward(content), self._settings.min_reward
        if reward is None:
            reading.left_out["unusable"] += 1
        elif least is not None and reward < least:
            reading.left_out[f"with a reward below {least:g}"] += 1
        else:
            first = sampled.index(True) if True in sampled else len(sampled)
            voices = [
                Voice.SPOKEN if spoken else Voice.SHOWN if place > first else Voice.GIVEN
                for place, spoken in enumerate(sampled)
            ]
            weights_L = np.array([self._weights[voice] for voice in voices])
            self._keep(ids, weights_L, str(content.get("question_id")), reading)

    def _tokens_of(self, content: Mapping[str, Any]) -> tuple[list[int], list[bool]]:
        """Tokens as they were, and which of them were sampled."""
        ids, origin = content["ids"], content["origin"]
        if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
            raise ValueError("ids must be a list of tokens")
        try:
            sampled = [kind == "sampled" for kind, count in origin for _ in range(count)]
        except (TypeError, ValueError):
            sampled = []
        if len(sampled) != len(ids) or [list(run) for run in run_lengths(sampled)] != origin:
            raise ValueError(f"origin must say of {len(ids)} tokens, in runs, which were given and which sampled")
        self._known(ids, sampled, content.get("turns"))
        return ids, sampled

    def _known(self, ids: list[int], sampled: list[bool], turns: object) -> None:
        """Tokens mean nothing to another tokenizer: what the first turn said must read the same."""
        if max(ids, default=0) >= self._vocabulary:
            raise ValueError(f"token {max(ids)} is none of the model's {self._vocabulary:,}: sampled by another model")
        match turns:
            case [{"text": str(said)}, *_] if True in sampled:
                start = sampled.index(True)
                end = sampled.index(False, start) if False in sampled[start:] else len(sampled)
                if not self._tokens.decode(ids[start:end]).startswith(said):
                    raise ValueError("the tokens do not read as the text of their turn: they are of another tokenizer")

    def _keep(self, ids: list[int], weights_L: NDArray[np.float64], question: str, reading: Reading) -> None:
        limit = self._settings.row_tokens
        longer = len(ids) > limit
        if longer and self._settings.overlong == "drop":
            reading.left_out[f"longer than {limit:,} tokens"] += 1
            return
        weights_L = weights_L[:limit]
        weights_L[:1] = 0.0  # nothing comes before it
        if 1.0 not in weights_L:
            reading.left_out["without a word of the model's"] += 1
            return
        if longer:
            reading.cut["traces"] += 1
        trace = Trace(np.array(ids[:limit], dtype=np.int32), weights_L.astype(np.float32), question)
        reading.traces.append(trace)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for cycles: traces have none, and looking for them among all that is loaded is a tenth of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def write(path: Path, rows: Iterable[Mapping[str, Any]], done: Callable[[], None] = lambda: None) -> int:
    """Writes a trace file, whole or not at all, compressed where its name ends in .gz; returns how many."""
    count = 0
    with atomic_write(path) as temporary, open_text(temporary, "w") as file:
        for each in rows:
            file.write(json.dumps(each, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
            done()
    return count


def _reward(content: Mapping[str, Any]) -> float | None:
    """What a trajectory was paid; None where it was not the model's fault that it ended."""
    match content.get("score"):
        case None:
            return None
        case {"total": float() | int() as total}:
            return total
        case other:
            raise ValueError(f"score must be null or hold a total, and it is {str(other)[:60]!r}")

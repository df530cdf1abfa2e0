"""Rejection sampling: keep the model's own episodes with a sufficient reward."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any, Literal

from sleuth.agent import prompts
from sleuth.agent.episode import ConfiguredRunner, run_batch
from sleuth.agent.task import Task
from sleuth.agent.tools import ToolResult
from sleuth.errors import InputError
from sleuth.records import Malformed, Question, Score, ToolCall, Trajectory, Turn
from sleuth.reward.rubric import Rubric
from sleuth.runs.atomic import explain_write_errors
from sleuth.runs.json_files import append_row, read_rows
from sleuth.runs.lock import acquire
from sleuth.runs.trajectory import trajectory_row

COUNTS = ("asked", "solved", "kept", "unusable")  # keys of the journal
ROUNDS = 8  # batch size, in multiples of the concurrency
Preference = Literal["first", "searches", "tokens"]
ScoredTrajectory = tuple[Trajectory, Score]


@dataclass(frozen=True, slots=True)
class SelectionConfig:
    """Selects episodes with at least `min_reward`, or with an exact match if that is None, ordered by `prefer`.

    With `messages`, episodes are written as messages, which not every episode can be: see `is_writable`.
    """

    samples: int
    min_reward: float | None = None
    per_question: int = 1
    prefer: Preference = "first"
    temperature: float = 1.0
    seed: int = 0
    messages: bool = False

    def select(self, episodes: Sequence[ScoredTrajectory]) -> list[ScoredTrajectory]:
        """Select the episodes of one question to keep, without duplicates."""
        good = {_key(each[0]): each for each in reversed(episodes) if self._is_good(each[1])}
        return sorted(good.values(), key=lambda each: self._rank(each[0]))[: self.per_question]

    def _is_good(self, score: Score) -> bool:
        return score.parts["em"] == 1.0 if self.min_reward is None else score.total >= self.min_reward

    def _rank(self, trajectory: Trajectory) -> tuple[int, int, int]:
        searches, tokens = trajectory.searches, sum(trajectory.sampled)
        match self.prefer:
            case "searches":
                return searches, tokens, trajectory.sample
            case "tokens":
                return tokens, searches, trajectory.sample
            case "first":
                return trajectory.sample, 0, 0


def _key(trajectory: Trajectory) -> tuple[object, ...]:
    """Return what is equal for equal episodes: the tokens, or the texts if a server returned no tokens."""
    return trajectory.ids or tuple(turn.text for turn in trajectory.turns)


def is_writable(agent: ConfiguredRunner, trajectory: Trajectory) -> bool:
    """Whether messages can represent an episode: no turn is malformed, and none contains marks of an observation."""
    marks = [mark.strip() for mark in agent.protocol.marks or ()]
    return not any(
        isinstance(turn.action, Malformed) or any(mark in turn.text for mark in marks) for turn in trajectory.turns
    )


def message_row(agent: ConfiguredRunner, trajectory: Trajectory) -> dict[str, Any]:
    """Return a writable episode as a row of messages, with whole observations."""
    question, config, protocol = trajectory.question, agent.config, agent.protocol
    observations = [
        protocol.observe(turn.action, _result(turn)) for turn in trajectory.turns if isinstance(turn.action, ToolCall)
    ]
    prompt = prompts.messages(question, config.template, protocol, abstain=bool(config.abstain))
    turns = protocol.to_messages([turn.text for turn in trajectory.turns], observations)
    return {"messages": [*prompt, *turns], "question_id": question.id, "data_source": question.data_source}


def _result(turn: Turn) -> ToolResult:
    """Return what the tool gave: its text, or the hits of each query."""
    if turn.result is not None:
        return turn.result
    ends = accumulate(turn.counts, initial=0)
    return tuple(turn.hits[start:end] for start, end in pairwise(ends))


@dataclass(slots=True)
class SampledTraces:
    """Kept rows, and counts by data source of questions asked and solved, and of episodes kept and unusable."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in COUNTS})
    failure: str = field(default="", init=False)  # reason of the latest unusable episode; not in the journal

    @property
    def questions(self) -> int:
        """Number of questions sampled so far."""
        return self.counts["asked"].total()

    async def add_question(
        self,
        question: Question,
        episodes: Sequence[Trajectory],
        rubric: Rubric,
        config: SelectionConfig,
        agent: ConfiguredRunner,
    ) -> None:
        """Score the episodes of one question and keep the selected ones."""
        scored = await rubric.score_all(episodes)
        usable = [(trajectory, score) for trajectory, score in scored if score is not None]
        self.failure = next((trajectory.failure for trajectory, _ in scored if trajectory.failure), self.failure)
        kept = config.select([each for each in usable if not config.messages or is_writable(agent, each[0])])
        added = {"asked": 1, "solved": bool(kept), "kept": len(kept), "unusable": len(episodes) - len(usable)}
        for name, count in added.items():
            self.counts[name][question.data_source] += count
        self.rows += [
            message_row(agent, each) if config.messages else trajectory_row(each, score) for each, score in kept
        ]

    def extend(self, rows: list[dict[str, Any]], counts: Mapping[str, Mapping[str, int]]) -> None:
        """Add the rows and counts of other questions."""
        self.rows += rows
        for name in COUNTS:
            self.counts[name].update(counts[name])


@dataclass(frozen=True, slots=True)
class SamplingJournal:
    """Progress file of a sampling command; running the same command again resumes from it."""

    path: Path

    @classmethod
    @contextmanager
    def open(cls, out: Path, settings: Mapping[str, Any]) -> "Iterator[SamplingJournal]":
        """Open the journal of a trace file; removes the journal on success, keeps it on interruption.

        `settings` is everything that determines the result; raises InputError if the journal has other settings.
        """
        path = out.with_name(f".sampling-{out.name}.jsonl")
        with ExitStack() as stack:
            with explain_write_errors(out):
                path.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(path.open("ab"))
            acquire(file, f"another process is sampling for {out}; wait for it, or end it first")
            # Drop an incomplete last line that a killed process left.
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
            header = json.loads(json.dumps({"order": settings}))
            first = next(read_rows(path), None)
            if first is None:
                append_row(path, header)
            elif first != header:
                raise InputError(
                    f"{path} holds unfinished samples of another model or settings; run that command again to finish "
                    "it, or remove the file"
                )
            yield cls(path)
            path.unlink()

    def read(self) -> SampledTraces:
        """Read the traces of an interrupted command."""
        sampled = SampledTraces()
        for row in islice(read_rows(self.path), 1, None):
            sampled.extend(row["rows"], row)
        return sampled

    def append(self, sampled: SampledTraces) -> None:
        append_row(self.path, {"rows": sampled.rows, **sampled.counts})


async def sample(
    agent: ConfiguredRunner,
    questions: Sequence[Question],
    rubric: Rubric,
    config: SelectionConfig,
    concurrency: int,
    on_episode: Callable[[Trajectory], None] | None = None,
    journal: SamplingJournal | None = None,
) -> SampledTraces:
    """Run episodes for all questions that are not in the journal; return the selected traces."""
    sampled = SampledTraces() if journal is None else journal.read()
    size = max(1, ROUNDS * concurrency // config.samples)
    for start in range(sampled.questions, len(questions), size):
        batch = questions[start : start + size]
        tasks = [
            Task(question, group, number, seed=config.seed, temperature=config.temperature)
            for group, question in enumerate(batch, start)
            for number in range(config.samples)
        ]
        episodes = await run_batch(agent, tasks, concurrency, on_episode)
        new = SampledTraces()
        for index, question in enumerate(batch):
            first = index * config.samples
            await new.add_question(question, episodes[first : first + config.samples], rubric, config, agent)
        if new.counts["unusable"].total() == len(episodes):
            # Not written to the journal, so that the same command retries these questions.
            raise InputError(
                f"all {len(episodes):,} episodes of {len(batch):,} questions failed ({new.failure}); fix the cause and "
                "run the same command again: earlier samples are kept"
            )
        if journal is not None:
            journal.append(new)
        sampled.extend(new.rows, new.counts)
    return sampled

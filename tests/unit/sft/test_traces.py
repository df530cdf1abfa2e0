"""Trace files: both formats, skipped traces, errors with line numbers, and worker processes."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sleuth.corpus.jsonl import text_lines
from sleuth.errors import ConfigError, InputError
from sleuth.model.tokens import Tokens
from sleuth.records import Score, Segment, StopReason, Trajectory
from sleuth.runs.trajectory import trajectory_row
from sleuth.sft.settings import SFTConfig
from sleuth.sft.traces import TraceSet, read_traces, worker_count, write_traces
from sleuth.train.observer import SilentObserver

TALK = {"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada"}]}
# Prompt of two tokens, three sampled, an observation of two, two sampled.
IDS, SAMPLED = (5, 6, 7, 8, 9, 10, 11, 12, 13), (False, False, True, True, True, False, False, True, True)


@pytest.fixture(scope="module")
def source(tokens: Tokens, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder without a model."""
    folder = tmp_path_factory.mktemp("model")
    tokens.tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def read(source: Path, tmp_path: Path) -> Callable[..., TraceSet]:
    """Parses rows or a text with the given settings."""

    def parse(*rows: object, text: str | None = None, **settings: Any) -> TraceSet:
        path = tmp_path / "traces.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in rows) if text is None else text)
        return read_traces(source, [path], SFTConfig(**settings), SilentObserver())

    return parse


@pytest.fixture
def rewarded(trajectory: Callable[..., Trajectory]) -> Callable[..., dict[str, Any]]:
    """Factory of trajectory rows by reward."""

    def make(reward: float | None = 1.0) -> dict[str, Any]:
        stop = StopReason.SEARCH_UNAVAILABLE if reward is None else StopReason.ANSWERED
        return trajectory_row(trajectory(IDS, SAMPLED, stop=stop), None if reward is None else Score(reward, {}))

    return make


def test_only_sampled_tokens_of_a_trajectory_are_learned(
    read: Callable[..., TraceSet], rewarded: Callable[..., dict[str, Any]]
) -> None:
    (trace,) = read(rewarded()).traces
    assert tuple(trace.ids_L.tolist()) == IDS
    assert trace.weights_L.tolist() == [float(each) for each in SAMPLED]
    assert trace.question == "q0"


def test_segments_are_traces_that_learn_each_sampled_token_once(
    read: Callable[..., TraceSet], trajectory: Callable[..., Trajectory]
) -> None:
    whole = trajectory(IDS, SAMPLED)
    (first,) = whole.segments
    fork = Segment((*IDS[:7], 20, 21), (False,) * 7 + (True, True), (-1.0,) * 2, (0,) * 2, "writer", 0, 7, ((2, 2),))
    row = trajectory_row(replace(whole, segments=(first, fork)), Score(1.0, {}))
    found = read(row, observation_weight=0.5).traces
    assert [each.ids_L.tolist() for each in found] == [list(IDS), list(fork.ids)]
    assert [each.weights_L.tolist() for each in found] == [[0, 0, 1, 1, 1, 0.5, 0.5, 1, 1], [0] * 7 + [1, 1]]


def test_observation_weight(read: Callable[..., TraceSet], rewarded: Callable[..., dict[str, Any]]) -> None:
    first, second = read(rewarded(), TALK, observation_weight=0.25).traces
    assert first.weights_L.tolist() == [0, 0, 1, 1, 1, 0.25, 0.25, 1, 1]
    assert set(second.weights_L.tolist()) == {0.0, 1.0}


def test_only_the_assistant_is_learned(read: Callable[..., TraceSet], tokens: Tokens) -> None:
    (trace,) = read(TALK).traces
    learned = trace.ids_L[trace.weights_L > 0].tolist()
    assert tokens.tokenizer.decode(learned) == "Ada<|end|>"
    assert trace.question == "Who?"


def test_low_rewards_are_skipped(read: Callable[..., TraceSet], rewarded: Callable[..., dict[str, Any]]) -> None:
    result = read(rewarded(0.5), rewarded(1.0), rewarded(None), TALK, min_reward=0.9)
    assert len(result.traces) == 2
    assert result.summary() == "2 traces; skipped: 1 with a reward below 0.9, 1 unusable"
    assert len(read(rewarded(0.5), rewarded(-1.0)).traces) == 2


def test_min_reward_needs_trajectories(read: Callable[..., TraceSet]) -> None:
    with pytest.raises(ConfigError, match="--min-reward"):
        read(TALK, min_reward=0.5)


@pytest.mark.parametrize(("overlong", "limit"), [("drop", 8), ("cut", 2)])
def test_overlong_traces_are_dropped(
    overlong: str, limit: int, read: Callable[..., TraceSet], rewarded: Callable[..., dict[str, Any]]
) -> None:
    with pytest.raises(InputError, match=r"traces\.jsonl.*: 0 traces; skipped: 1 (longer than 8|without)"):
        read(rewarded(), row_tokens=limit, overlong=overlong)


def test_overlong_traces_are_truncated(read: Callable[..., TraceSet], rewarded: Callable[..., dict[str, Any]]) -> None:
    result = read(rewarded(), row_tokens=6, overlong="cut")
    assert tuple(result.traces[0].ids_L.tolist()) == IDS[:6]
    assert result.truncated == {"traces": 1}


def test_long_observations_are_truncated(read: Callable[..., TraceSet]) -> None:
    spoken = f"<search> Ada </search>\n\n<information>{'Ada ' * 50}</information>\n\n<answer> Ada </answer>"
    talk = {"messages": [TALK["messages"][0], {"role": "assistant", "content": spoken}]}
    result = read(talk, observation_tokens=20)
    assert result.truncated == {"observations": 1}
    assert len(result.traces[0].ids_L) < 60


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        ({"text": "Ada"}, "line 2: .*text"),
        ({}, "line 2: .*none"),
        ({"messages": []}, "line 2: messages"),
        ([1], "line 2: "),
        ({"ids": [1, 2], "origin": [["given", 1]]}, "line 2: origin .*2"),
        ({"ids": [1, 2], "origin": 7}, "line 2: origin .*2"),
        ({"ids": [1], "origin": [["given", 1]], "version": 3}, "line 2: .*3"),
        ({"segments": 3}, "line 2: .*segments"),
        ({"segments": [{"ids": [1]}]}, "line 2: .*segments"),
        ({"ids": ["a"], "origin": [["given", 1]]}, "line 2: ids"),
        ({"ids": [10**6], "origin": [["sampled", 1]]}, "line 2: token 1000000"),
        ({"ids": [5, 6], "origin": [["given", 1], ["sampled", 1]], "score": 1}, "line 2: score"),
        (
            {"ids": [5, 6], "origin": [["given", 1], ["sampled", 1]], "turns": [{"text": "Lisbon", "tokens": 1}]},
            "line 2: .*tokenizer",
        ),
    ],
)
def test_invalid_rows(content: object, pattern: str, read: Callable[..., TraceSet]) -> None:
    with pytest.raises(InputError, match=pattern):
        read(TALK, content)


@pytest.mark.parametrize(("text", "pattern"), [("", "no traces"), ("\n \n", "no traces"), ("{", "line 1: .*JSON")])
def test_invalid_files(text: str, pattern: str, read: Callable[..., TraceSet]) -> None:
    with pytest.raises(InputError, match=pattern):
        read(text=text)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jsonl"):
        list(text_lines(tmp_path / "none.jsonl", "trace file"))
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(b"{}\n")[:-4])
    with pytest.raises(InputError, match=r"torn\.jsonl\.gz"):
        list(text_lines(tmp_path / "torn.jsonl.gz", "trace file"))


@pytest.mark.parametrize("name", ["traces.jsonl", "traces.jsonl.gz"])
def test_round_trip(name: str, tmp_path: Path) -> None:
    assert write_traces(tmp_path / name, [TALK, TALK]) == 2
    assert [json.loads(line) for line in text_lines(tmp_path / name, "trace file")] == [TALK, TALK]


class Recorder(SilentObserver):
    """Records stages and progress."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int]] = []
        self.advanced = 0

    def begin(self, stage: str, total: int) -> None:
        self.stages.append((stage, total))

    def advance(self, parts: int = 1) -> None:
        self.advanced += parts


def talk(number: int) -> dict[str, Any]:
    """A trace with its own question; every seventh is too long, every fifth has a long observation."""
    shown = f"<search> {number} </search>\n\n<information>{'Oslo ' * 30 * (number % 5 == 0)}</information>\n\n"
    said = "Ada " * 300 if number % 7 == 0 else f"{shown}<answer> {number} </answer>"
    return {"messages": [{"role": "user", "content": f"Who {number}?"}, {"role": "assistant", "content": said}]}


def contents(found: TraceSet) -> list[tuple[str, list[int], list[float]]]:
    return [(each.question, each.ids_L.tolist(), each.weights_L.tolist()) for each in found.traces]


def test_workers_give_the_same_traces_as_one_process(source: Path, tmp_path: Path) -> None:
    files = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    for start, path in zip((0, 700), files, strict=True):
        lines = [json.dumps(talk(number)) + "\n" for number in range(start, start + 700)]
        path.write_text("\n".join(lines))
    settings = SFTConfig(row_tokens=200, observation_tokens=20, observation_weight=0.5)
    recorder = Recorder()
    alone, spread = (read_traces(source, files, settings, recorder, workers=count) for count in (0, 2))
    assert contents(alone) == contents(spread)
    assert [each.question for each in spread.traces] == [f"Who {number}?" for number in range(1400) if number % 7]
    assert alone.summary() == spread.summary()
    assert spread.summary() == "1,200 traces; skipped: 200 longer than 200 tokens; truncated: 240 observations"
    assert (recorder.stages, recorder.advanced) == ([("reading traces", 1400)] * 2, 2800)
    files[1].write_text("".join(lines[:300]) + '{"messages": []}\n' + "{\n")
    with pytest.raises(InputError, match="line 301: messages"):
        read_traces(source, files[1:], settings, recorder, workers=1)


def test_few_traces_show_no_progress(source: Path, tmp_path: Path) -> None:
    (tmp_path / "few.jsonl").write_text(json.dumps(talk(1)) + "\n")
    recorder = Recorder()
    assert len(read_traces(source, [tmp_path / "few.jsonl"], SFTConfig(), recorder).traces) == 1
    assert recorder.stages == []


@pytest.mark.parametrize(
    ("total", "cores", "count"), [(40_000, 16, 12), (40_000, 4, 3), (40_000, 2, 0), (5_000, 16, 0), (10**6, 128, 12)]
)
def test_worker_count(total: int, cores: int, count: int) -> None:
    assert worker_count(total, cores) == count


def test_workers_do_not_load_torch() -> None:
    """Loading torch takes seconds, and there are many workers."""
    script = "import sys, sleuth.sft.traces; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0

"""Trace files: both forms read as rows, what is left out counted, what is wrong told with its line."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sleuth.corpus.jsonl import text_lines
from sleuth.errors import ConfigError, InputError
from sleuth.model.tokens import Tokens
from sleuth.records import Score, StopReason, Trajectory
from sleuth.runs.trajectory import trajectory_row
from sleuth.sft import traces
from sleuth.sft.settings import SFTConfig
from sleuth.sft.trace_reader import read as read_files
from sleuth.sft.traces import Reading
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
def read(source: Path, tmp_path: Path) -> Callable[..., Reading]:
    """Reads these rows, or the text given, by these settings."""

    def reading(*rows: object, text: str | None = None, **settings: Any) -> Reading:
        path = tmp_path / "traces.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in rows) if text is None else text)
        return read_files(source, [path], SFTConfig(**settings), SilentObserver())

    return reading


@pytest.fixture
def told(trajectory: Callable[..., Trajectory]) -> Callable[..., dict[str, Any]]:
    """Makes the row of a trajectory that was paid so much."""

    def make(reward: float | None = 1.0) -> dict[str, Any]:
        stop = StopReason.SEARCH_UNAVAILABLE if reward is None else StopReason.ANSWERED
        return trajectory_row(trajectory(IDS, SAMPLED, stop=stop), None if reward is None else Score(reward, {}))

    return make


def test_trajectory_is_its_tokens_and_only_sampled_ones_are_learned(
    read: Callable[..., Reading], told: Callable[..., dict[str, Any]]
) -> None:
    (trace,) = read(told()).traces
    assert tuple(trace.ids_L.tolist()) == IDS
    assert trace.weights_L.tolist() == [float(each) for each in SAMPLED]
    assert trace.question == "q0"


def test_observations_weigh_as_they_are_told_to(
    read: Callable[..., Reading], told: Callable[..., dict[str, Any]]
) -> None:
    first, second = read(told(), TALK, observation_weight=0.25).traces
    assert first.weights_L.tolist() == [0, 0, 1, 1, 1, 0.25, 0.25, 1, 1]
    assert set(second.weights_L.tolist()) == {0.0, 1.0}


def test_conversation_teaches_the_assistants_words(read: Callable[..., Reading], tokens: Tokens) -> None:
    (trace,) = read(TALK).traces
    learned = trace.ids_L[trace.weights_L > 0].tolist()
    assert tokens.tokenizer.decode(learned) == "Ada<|end|>"
    assert trace.question == "Who?"


def test_what_was_paid_too_little_is_left_out(
    read: Callable[..., Reading], told: Callable[..., dict[str, Any]]
) -> None:
    reading = read(told(0.5), told(1.0), told(None), TALK, min_reward=0.9)
    assert len(reading.traces) == 2
    assert reading.sentence() == "2 traces; left out: 1 with a reward below 0.9, 1 unusable"
    assert len(read(told(0.5), told(-1.0)).traces) == 2


def test_reward_that_nothing_has_is_no_setting(read: Callable[..., Reading]) -> None:
    with pytest.raises(ConfigError, match="--min-reward has no effect"):
        read(TALK, min_reward=0.5)


@pytest.mark.parametrize(("overlong", "limit"), [("drop", 8), ("cut", 2)])
def test_long_traces_are_left_out(
    overlong: str, limit: int, read: Callable[..., Reading], told: Callable[..., dict[str, Any]]
) -> None:
    with pytest.raises(InputError, match=r"nothing is left of .*: 0 traces; left out: 1 (longer than 8|without)"):
        read(told(), row_tokens=limit, overlong=overlong)


def test_long_traces_are_cut(read: Callable[..., Reading], told: Callable[..., dict[str, Any]]) -> None:
    reading = read(told(), row_tokens=6, overlong="cut")
    assert tuple(reading.traces[0].ids_L.tolist()) == IDS[:6]
    assert reading.cut == {"traces": 1}


def test_long_observations_are_cut_and_counted(read: Callable[..., Reading]) -> None:
    spoken = f"<search> Ada </search>\n\n<information>{'Ada ' * 50}</information>\n\n<answer> Ada </answer>"
    talk = {"messages": [TALK["messages"][0], {"role": "assistant", "content": spoken}]}
    reading = read(talk, observation_tokens=20)
    assert reading.cut == {"observations": 1}
    assert len(reading.traces[0].ids_L) < 60


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"text": "Ada"}, "line 2: unknown form of row, with the keys text; a line looks like"),
        ({}, "line 2: unknown form of row, with the keys none"),
        ({"messages": []}, "line 2: messages must be a list"),
        ([1], "line 2: expected a JSON object"),
        ({"ids": [1, 2], "origin": [["given", 1]]}, "line 2: origin must say of 2 tokens"),
        ({"ids": [1, 2], "origin": 7}, "line 2: origin must say of 2 tokens"),
        ({"ids": [1], "origin": [["given", 1]], "version": 2}, "line 2: it has trajectory format 2"),
        ({"ids": ["a"], "origin": [["given", 1]]}, "line 2: ids must be a list of tokens"),
        ({"ids": [10**6], "origin": [["sampled", 1]]}, "line 2: token 1000000 is none of the model's"),
        ({"ids": [5, 6], "origin": [["given", 1], ["sampled", 1]], "score": 1}, "line 2: score must be null or hold"),
        (
            {"ids": [5, 6], "origin": [["given", 1], ["sampled", 1]], "turns": [{"text": "Lisbon", "tokens": 1}]},
            "line 2: the tokens do not read as the text",
        ),
    ],
)
def test_bad_rows_are_told_with_their_line(content: object, sentence: str, read: Callable[..., Reading]) -> None:
    with pytest.raises(InputError, match=sentence):
        read(TALK, content)


@pytest.mark.parametrize(
    ("text", "sentence"), [("", "holds no traces"), ("\n \n", "holds no traces"), ("{", "not JSON")]
)
def test_bad_files_are_told(text: str, sentence: str, read: Callable[..., Reading]) -> None:
    with pytest.raises(InputError, match=sentence):
        read(text=text)


def test_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        list(text_lines(tmp_path / "none.jsonl", "trace file"))
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(b"{}\n")[:-4])
    with pytest.raises(InputError, match="cannot be read"):
        list(text_lines(tmp_path / "torn.jsonl.gz", "trace file"))


@pytest.mark.parametrize("name", ["traces.jsonl", "traces.jsonl.gz"])
def test_written_traces_are_read(name: str, tmp_path: Path) -> None:
    assert traces.write(tmp_path / name, [TALK, TALK]) == 2
    assert [json.loads(line) for line in text_lines(tmp_path / name, "trace file")] == [TALK, TALK]

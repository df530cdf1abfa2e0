"""Trajectories of outside agents: segments, forks, roles, calls of a helper model, and rewards from the agent."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sleuth.records import Score, Trajectory
from sleuth.runs.run import Run
from sleuth.runs.trajectory import trajectory_row

ID = "runs/first"
PROMPT, SEEN = "Who?\n", "[X: by Ada]"
CALL = '<tool_call>{"name": "find", "arguments": {"book": "X"}}</tool_call>'
SHARED = len(PROMPT + CALL + SEEN)


@pytest.fixture
def outside(run: Run, episode: Callable[..., Trajectory], forked: Callable[..., Trajectory]) -> Run:
    """A run whose step 4 has a plain trajectory and two of an outside agent."""
    every = [(episode(5, 4), Score(1.0, {"em": 1.0})), *((forked(sample), Score(0.5)) for sample in (0, 1))]
    run.write_trajectories(4, (trajectory_row(each, score) for each, score in every))
    return run


def test_list_and_filter(outside: Run, ask: Callable[..., Any]) -> None:
    get = ask("runs")
    plain, first, second = get("/api/trajectories", run=ID, step_from=4).json()["rows"]
    names = ("segments", "forks", "roles", "reward_by", "answer", "tokens_sampled")
    assert [plain[name] for name in names] == [1, 0, [], None, "Ada", 58]
    assert [first[name] for name in names] == [2, 0, ["writer"], "agent", "Ada", len(CALL) + 17]
    found = get("/api/trajectories", run=ID, segments_min=2).json()
    assert [each["at"] for each in found["rows"]] == [first["at"], second["at"]]
    assert get("/api/trajectories", run=ID, segments_min=1).json()["total"] == 15
    assert get("/api/trajectories", run=ID, segments_min=3).json()["total"] == 0


@pytest.mark.parametrize(("text", "count"), [("looks RIGHT", 2), ("weights_versions", 0), ("parent", 0)])
def test_text_search(text: str, count: int, outside: Run, ask: Callable[..., Any]) -> None:
    assert len(ask("runs")("/api/trajectories", run=ID, text=text).json()["rows"]) == count


def test_second_segment_of_a_role_is_a_fork(
    run: Run, ask: Callable[..., Any], forked: Callable[..., Trajectory]
) -> None:
    attempt = forked(0)
    restarted = replace(attempt, segments=(*attempt.segments, replace(attempt.segments[1], parent=None, shared=0)))
    run.write_trajectories(4, [trajectory_row(restarted, Score(0.5))])
    (row,) = ask("runs")("/api/trajectories", run=ID, step_from=4).json()["rows"]
    assert (row["segments"], row["forks"]) == (3, 1)


def test_another_key_order(outside: Run, ask: Callable[..., Any], forked: Callable[..., Trajectory]) -> None:
    """Segments are counted in rows of other programs, and names of keys in texts do not count."""
    row = trajectory_row(forked(), Score(0.5))
    spaced = {**row, "question": '","segments":["parent":"parent":'}
    outside.write_trajectories(5, [dict(reversed(row.items())), spaced])
    found = ask("runs")("/api/trajectories", run=ID, segments_min=2, step_from=5).json()["rows"]
    assert [each["segments"] for each in found] == [2, 2]
    assert ask("runs")("/api/trajectories", run=ID, segments_min=3, step_from=5).json()["rows"] == []


def test_segments(outside: Run, ask: Callable[..., Any]) -> None:
    found = ask("runs")("/api/trajectory", run=ID, at="4.1").json()
    first, second = found["segments"]
    end = SHARED + len("Ada?")
    assert first == {
        "role": "",
        "parent": None,
        "shared": 0,
        "start": 0,
        "end": end,
        "sampled": len(CALL) + 4,
        "turns": [0, 1],
        "prompt": PROMPT,
    }
    assert (second["role"], second["parent"], second["shared"]) == ("writer", 0, SHARED)
    assert (second["start"], second["turns"], second["prompt"]) == (end, [3], "Write.")
    tokens = found["tokens"]
    assert {len(tokens[name]) for name in ("ids", "text", "origin", "logprob", "version", "turn")} == {second["end"]}
    assert tokens["origin"][end : end + SHARED] == ["shared"] * SHARED
    assert "".join(tokens["text"]) == f"{PROMPT}{CALL}{SEEN}Ada?{PROMPT}{CALL}{SEEN}Write.hm</think>Ada"
    own = {
        number: "".join(t for t, n in zip(tokens["text"], tokens["turn"], strict=True) if n == number)
        for number in (0, 3)
    }
    assert own == {0: CALL, 3: "hm</think>Ada"}
    assert {tokens["logprob"][place] for place in range(end, end + SHARED)} == {None}


def test_turns(outside: Run, ask: Callable[..., Any]) -> None:
    found = ask("runs")("/api/trajectory", run=ID, at="4.1").json()
    call, answer, helper, last, grade = found["turns"]
    assert [turn["segment"] for turn in found["turns"]] == [0, 0, None, 1, None]
    assert (call["tool"], call["call"], call["result"], call["shown"]) == ("find", "X", None, SEEN)
    assert (answer["thought"], answer["answer"], answer["shown"]) == ("", "Ada?", None)
    assert (last["thought"], last["answer"]) == ("hm", "Ada")
    assert (helper["span"], grade["text"]) == (None, "Grade: 1")
    plain = ask("runs")("/api/trajectory", run=ID, at="4.0").json()
    assert [len(plain["segments"]), plain["segments"][0]["turns"]] == [1, [0, 1]]


def test_token_log(outside: Run, ask: Callable[..., Any]) -> None:
    """Values of sampled tokens are listed over all segments."""
    first, second = len(CALL) + 4, 13
    ratios = [float(place) for place in range(first + second)]
    weights = [0.0] * first + [0.25] * second
    log = {"advantage": -0.5, "weight": weights, "ratio": ratios}
    outside.write_token_log(4, [{}, log, {"ratio": [1.0]}])
    get = ask("runs")
    found = get("/api/trajectory", run=ID, at="4.1").json()
    tokens, start = found["tokens"], found["segments"][1]["start"]
    assert [each for each in tokens["ratio"][start:] if each is not None] == ratios[first:]
    assert set(tokens["weight"][:start]) == {None, 0.0}
    assert set(tokens["weight"][start:]) == {None, 0.25}
    assert set(tokens["advantage"]) == {None, -0.5}
    assert get("/api/trajectory", run=ID, at="4.2").json()["tokens"]["ratio"] is None


def test_greedy_calls_have_no_span(outside: Run, ask: Callable[..., Any], forked: Callable[..., Trajectory]) -> None:
    row: Any = json.loads(json.dumps(trajectory_row(forked(), Score(0.5))))
    count = len(row["segments"][1]["ids"])
    row["segments"][1] |= {"origin": [["given", count]], "logprobs": [], "weights_versions": [], "calls": []}
    outside.write_trajectories(5, [row])
    found = ask("runs")("/api/trajectory", run=ID, at="5.0").json()
    assert [turn["span"] is None for turn in found["turns"]] == [False, False, True, True, True]
    assert found["segments"][1]["turns"] == [3]


@pytest.mark.parametrize("change", [{"shared": 10**6}, {"shared": SHARED + 8}, {"origin": [["given", 3]]}], ids=str)
def test_an_inconsistent_segment(
    change: dict[str, Any], outside: Run, ask: Callable[..., Any], forked: Callable[..., Trajectory]
) -> None:
    row: Any = json.loads(json.dumps(trajectory_row(forked(), Score(0.5))))
    row["segments"][1] |= change
    outside.write_trajectories(5, [row])
    answer = ask("runs")("/api/trajectory", run=ID, at="5.0")
    assert answer.status_code == 503
    assert "segment 1" in answer.json()["detail"]

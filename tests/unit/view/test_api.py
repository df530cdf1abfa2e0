"""Lists of trajectories, full trajectories, groups and questions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from sleuth.evaluate.folder import EvaluationFolder
from sleuth.records import Score, Trajectory
from sleuth.runs.run import Run
from sleuth.runs.trajectory import trajectory_row
from sleuth.view.trajectory import token_texts

Evaluate = Callable[..., EvaluationFolder]

ID = "runs/first"
FILTERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "none, latest step first": ({}, [f"{step}.{place}" for step in (3, 2, 1) for place in range(4)]),
    "earliest first": ({"order": "old"}, [f"{step}.{place}" for step in (1, 2, 3) for place in range(4)]),
    "steps": ({"step_from": 2, "step_to": 2}, ["2.0", "2.1", "2.2", "2.3"]),
    "question": ({"question": "q9", "step_to": 2}, ["2.2", "2.3", "1.2", "1.3"]),
    "source": ({"source": "another"}, []),
    "reward": ({"reward_min": 0.5}, ["3.0", "3.2", "2.0", "2.2", "1.0", "1.2"]),
    "range of rewards": ({"reward_min": 0, "reward_max": 0.5, "order": "old", "step_to": 1}, ["1.1", "1.3"]),
    "stop": ({"stop": "out_of_turns"}, ["3.1", "3.3"]),
    "stops": ({"stop": ["out_of_turns", "answered"], "step_from": 3}, ["3.0", "3.1", "3.2", "3.3"]),
    "group and sample": ({"group": 2, "sample": 1}, ["2.1"]),
    "text the model wrote": ({"text": "ANSWER>bob", "step_to": 1}, ["1.1", "1.3"]),
    "text of the question": ({"text": "book 2?"}, ["2.0", "2.1"]),
    "text and reward": ({"text": "who wrote", "reward_max": 0, "step_to": 1}, ["1.1", "1.3"]),
    "text of documents, which is not the model's": ({"text": "Tür"}, []),
    "all together": ({"question": "q9", "stop": "answered", "reward_max": 0.1}, ["2.3", "1.3"]),
}


@pytest.mark.parametrize(("wanted", "expected"), FILTERS.values(), ids=FILTERS)
def test_filters(wanted: dict[str, Any], expected: list[str], run: Run, ask: Callable[..., Any]) -> None:
    found = ask("runs")("/api/trajectories", run=ID, **wanted).json()
    assert [each["at"] for each in found["rows"]] == expected
    assert (found["complete"], found["next"]) == (True, None)
    assert found["total"] == (None if "text" in wanted else len(expected))


@pytest.mark.parametrize("wanted", [{}, {"reward_min": 0}, {"text": "wrote"}, {"order": "old"}], ids=str)
def test_pages(wanted: dict[str, Any], run: Run, ask: Callable[..., Any]) -> None:
    get, seen = ask("runs"), list[str]()
    cursor: dict[str, str] = {}
    for _ in range(10):
        page = get("/api/trajectories", run=ID, limit=5, **wanted, **cursor).json()
        seen += [each["at"] for each in page["rows"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    whole = get("/api/trajectories", run=ID, **wanted).json()["rows"]
    assert seen == [each["at"] for each in whole]
    assert len(seen) == 12


def test_list_entry(run: Run, ask: Callable[..., Any]) -> None:
    first = ask("runs")("/api/trajectories", run=ID, step_to=1, limit=1).json()["rows"][0]
    assert {name: first[name] for name in ("question_id", "answer", "reward", "em", "searches", "turns", "stop")} == {
        "question_id": "q1",
        "answer": "Ada",
        "reward": 1.0,
        "em": 1.0,
        "searches": 1,
        "turns": 2,
        "stop": "answered",
    }
    assert (
        first["tokens"] > first["tokens_sampled"] == len("<think>hm</think><search>book</search><answer>Ada</answer>")
    )


def test_trajectory_turns(run: Run, ask: Callable[..., Any]) -> None:
    found = ask("runs")("/api/trajectory", run=ID, at="3.1").json()
    search, last = found["turns"]
    assert found["prompt"] == "Who wrote book 3?\n"
    assert (search["thought"], search["queries"], search["shown"]) == ("hm", ["book"], "[Tür: Ada wrote it.]")
    assert search["hits"][0] == {"id": "p1", "score": 2.5, "gold": True, "query": 0, "title": "Book", "text": None}
    assert [hit["gold"] for hit in search["hits"]] == [True, False]
    assert (last["action"], last["reason"], last["answer"]) == ("malformed", "no action", None)
    assert found["score"] == {"total": 0.0, "parts": {"em": 0.0, "f1": 0.0, "format": 1.0, "searches": 1.0}}
    assert found["neighbours"] == {"previous": "3.0", "next": "3.2"}
    assert "documents" in found["missing"]


def test_rewards_of_turns(run: Run, ask: Callable[..., Any], episode: Callable[..., Trajectory]) -> None:
    scores = Score(1.2, {"em": 1.0}, turns=(0.2, 1.0)), Score(1.0, {"em": 1.0})
    run.write_trajectories(4, [trajectory_row(episode(0, 4, sample), score) for sample, score in enumerate(scores)])
    get = ask("runs")
    found = get("/api/trajectory", run=ID, at="4.0").json()
    assert [turn["reward"] for turn in found["turns"]] == found["score"]["turns"] == [0.2, 1.0]
    assert [turn["reward"] for turn in get("/api/trajectory", run=ID, at="4.1").json()["turns"]] == [None, None]


def test_neighbours_across_steps(run: Run, ask: Callable[..., Any]) -> None:
    get = ask("runs")
    assert get("/api/trajectory", run=ID, at="1.3").json()["neighbours"] == {"previous": "1.2", "next": "2.0"}
    assert get("/api/trajectory", run=ID, at="1.0").json()["neighbours"]["previous"] is None
    assert get("/api/trajectory", run=ID, at="3.3").json()["neighbours"]["next"] is None


def test_token_columns(run: Run, ask: Callable[..., Any]) -> None:
    found = ask("runs")("/api/trajectory", run=ID, at="2.0").json()
    tokens = found["tokens"]
    assert {len(tokens[name]) for name in ("ids", "text", "origin", "logprob", "version", "turn")} == {
        found["tokens_all"]
    }
    sampled = [place for place, origin in enumerate(tokens["origin"]) if origin == "sampled"]
    assert [tokens["logprob"][place] for place in sampled] == pytest.approx([-0.01 * n for n in range(len(sampled))])
    assert {tokens["version"][place] for place in sampled} == {1}
    first, second = (turn["span"] for turn in found["turns"])
    assert "".join(tokens["text"][slice(*first)]) == found["turns"][0]["text"]
    assert "".join(tokens["text"][slice(*second)]) == found["turns"][1]["text"]
    assert tokens["turn"][first[0]] == 0
    assert tokens["turn"][second[1] - 1] == 1
    given = set(range(len(tokens["ids"]))) - set(sampled)
    assert {tokens[name][place] for name in ("logprob", "version", "turn") for place in given} == {None}
    assert (tokens["ratio"], tokens["advantage"]) == (None, None)
    assert {"ratio", "advantage"} <= found["missing"].keys()


def test_token_log(run: Run, ask: Callable[..., Any]) -> None:
    count = len(json.loads(run.trajectories(2).read_text().splitlines()[0])["logprobs"])
    ratios = [1 + place / 1000 for place in range(count)]
    run.write_token_log(
        2, [{"advantage": 0.7, "weight": 0.01, "ratio": ratios}, {"advantage": [1.0], "ratio": None}, {}, {}]
    )
    get = ask("runs")
    found = get("/api/trajectory", run=ID, at="2.0").json()
    tokens = found["tokens"]
    assert found["advantage"] == 0.7
    assert [each for each in tokens["ratio"] if each is not None] == ratios
    assert set(tokens["advantage"]) == {None, 0.7}
    assert not {"ratio", "advantage"} & found["missing"].keys()
    # A list of another length belongs to another trajectory and is ignored.
    other = get("/api/trajectory", run=ID, at="2.1").json()
    assert (other["tokens"]["advantage"], other["advantage"]) == (None, None)


def test_no_tokenizer(run: Run, ask: Callable[..., Any]) -> None:
    (run.checkpoint(2) / "tokenizer.json").unlink()
    found = ask("runs")("/api/trajectory", run=ID, at="2.0").json()
    assert (found["tokens"]["text"], found["prompt"], found["turns"][0]["shown"]) == (None, None, None)
    assert "--tokenizer" in found["missing"]["text"]


def test_characters_of_several_tokens_stand_with_their_last(tokenizer: Tokenizer) -> None:
    text = "Tür 東京 🙂!"
    ids = tokenizer.encode(text).ids
    found = token_texts(tokenizer, ids)
    assert (len(found), "".join(found)) == (len(text.encode()), text)
    assert found[:4] == ["T", "", "ü", "r"]


def test_group_holds_the_samples_compare_folders(run: Run, ask: Callable[..., Any]) -> None:
    get = ask("runs")
    found = get("/api/group", run=ID, step=2, group=9).json()
    assert [each["answer"] for each in found["samples"]] == ["Ada", "Bob"]
    assert [each["tokens"] for each in found["samples"]] == [None, None]
    assert found["question"] == "Who wrote book 9?"
    assert get("/api/group", run=ID, step=2, group=9, tokens=1).json()["samples"][0]["tokens"]["ids"]
    assert get("/api/group", run=ID, step=2, group=7).status_code == 404


def test_question_is_followed_over_the_steps(run: Run, ask: Callable[..., Any]) -> None:
    found = ask("runs")("/api/question", run=ID, question="q9").json()
    assert [(each["step"], each["samples"], each["reward"]) for each in found["steps"]] == [
        (n, 2, 0.5) for n in (1, 2, 3)
    ]
    assert [each["at"] for each in found["steps"][1]["rows"]] == ["2.2", "2.3"]


def test_questions(run: Run, ask: Callable[..., Any]) -> None:
    get = ask("runs")
    found = get("/api/questions", run=ID).json()
    assert [(each["question_id"], each["trajectories"]) for each in found["rows"]] == [
        ("q9", 6),
        ("q1", 2),
        ("q2", 2),
        ("q3", 2),
    ]
    assert found["rows"][0]["reward"] == pytest.approx(0.5)
    assert get("/api/questions", run=ID, text="BOOK 2").json()["total"] == 1


def test_rows_with_another_key_order(run: Run, ask: Callable[..., Any], episode: Callable[..., Trajectory]) -> None:
    """Partial parsing falls back to full parsing for rows of other programs."""
    kept = trajectory_row(episode(4, 4), None)
    run.write_trajectories(4, [dict(reversed(kept.items())), {**kept, "question": '","stop":"x", "weights_versions":'}])
    get = ask("runs")
    found = get("/api/trajectories", run=ID, question="q4", text="book").json()["rows"]
    assert [each["at"] for each in found] == ["4.0", "4.1"]
    assert get("/api/trajectories", run=ID, reward_min=-1e9, step_from=4).json()["rows"] == []


def test_growing_evaluation(evaluate: Evaluate, ask: Callable[..., Any], episode: Callable[..., Trajectory]) -> None:
    folder, get = evaluate("e", ["Ada", "Bob"]), ask("evaluations")
    listed = {"evaluation": "evaluations/e"}
    assert [each["question_id"] for each in get("/api/trajectories", **listed).json()["rows"]] == ["q1", "q0"]
    path = folder.path / "trajectories.jsonl"
    more = json.dumps(trajectory_row(episode(5, 0), None))
    with path.open("a") as file:
        file.write(f"{more}\n{more[:40]}")
    found = get("/api/trajectories", **listed).json()
    assert [each["question_id"] for each in found["rows"]] == ["q1", "q0", "q5"]
    whole = get("/api/trajectory", at="0.1", **listed).json()
    assert whole["turns"][0]["hits"][0]["text"] == "Ada wrote it."
    assert get("/api/trajectory", at="0.3", **listed).status_code == 404


def test_replaced_file_is_read_again(run: Run, ask: Callable[..., Any], episode: Callable[..., Trajectory]) -> None:
    get = ask("runs")
    assert get("/api/trajectories", run=ID, question="q2").json()["total"] == 2
    run.rewind(1)
    run.write_trajectories(2, [trajectory_row(episode(7, 2), None)])
    assert get("/api/trajectories", run=ID, question="q2").json()["total"] == 0
    assert get("/api/trajectories", run=ID, question="q7").json()["total"] == 1


def test_index_cache(run: Run, ask: Callable[..., Any], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    wanted: dict[str, Any] = {"run": ID, "reward_min": 0.5}
    first = ask("runs", cache=cache)("/api/trajectories", **wanted).json()
    kept = {path.name: path for path in cache.rglob("*.json")}
    assert sorted(kept) == ["step-1.json", "step-2.json", "step-3.json"]
    # A cached index is trusted: filters use its values.
    saved = json.loads(kept["step-1.json"].read_text())
    saved["columns"]["reward"] = [0.0] * 4
    kept["step-1.json"].write_text(json.dumps(saved))
    kept["step-2.json"].write_text("{")
    second = ask("runs", cache=cache)("/api/trajectories", **wanted).json()
    assert [each["at"] for each in first["rows"]] == ["3.0", "3.2", "2.0", "2.2", "1.0", "1.2"]
    assert [each["at"] for each in second["rows"]] == ["3.0", "3.2", "2.0", "2.2"]


def test_unwritable_cache(run: Run, ask: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    assert ask("runs", cache=tmp_path / "taken")("/api/trajectories", run=ID, reward_min=0.5).json()["total"] == 6


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "torn": (lambda line: line[:-200] + b"\n", "it is not JSON ("),
    "torn in two": (lambda line: line[:150] + b"\n" + line[150:], "it is not JSON ("),
    "without its end": (lambda line: line[:-1], "it is not JSON (Extra data"),
    "torn among its numbers": (lambda line: line.replace(b'"ids":[', b'"ids":['[:-2]), "it is not JSON ("),
    "zeros": (lambda line: b"\0" * (len(line) - 1) + b"\n", "it is not JSON ("),
    "no text": (lambda _: b"\xff" * 5000 + b"\n", "it is not JSON ('utf-8' codec can't decode"),
    "too deep": (lambda _: b"[" * 10**5 + b"\n", "it is not JSON (maximum recursion depth"),
    "no object": (lambda _: b'["<script>alert(1)</script>"]\n', "it is ['<script>alert(1)</script>'], not an object"),
    "no fields": (lambda _: b'{"question_id": "q"}\n', "it has no group"),
    "group of words": (
        lambda line: line.replace(b'"group":2', b'"group":"two"'),
        "its group is 'two', and it should",
    ),
    "group of no size": (lambda line: line.replace(b'"group":2', b'"group":2' + b"0" * 30), "its group is 2000"),
    "unknown stop": (lambda line: line.replace(b'"answered","fail', b'"bored","fail'), "its stop is 'bored', and"),
    "reward of words": (lambda line: line.replace(b'"total":0.0', b'"total":"no"'), "its score.total is 'no', and"),
    "turns of words": (lambda line: line.replace(b'"turns":[', b'"turns":["a",'), "its turns.0 is 'a', not an object"),
    "hits of numbers": (
        lambda line: line.replace(b'"hits":[', b'"hits":[7,', 1),
        "its turns.0.hits.0 is 7, not an object",
    ),
    "ids of words": (lambda line: line.replace(b'"ids":[', b'"ids":["a",'), "its ids.0 is 'a', and it should"),
    "origins without end": (
        lambda line: line.replace(b'["given",', b'["given",9' + b"0" * 12),
        "its origin.0.1 is 9000",
    ),
}
SECOND = ["2.0", "2.1", "2.2", "2.3"]


def damage(path: Path, row: int, change: Callable[[bytes], bytes], *, offsets: bool = True) -> int:
    """Change the line of a row and rewrite the offsets; return the offset of the row."""
    lines = path.read_bytes().splitlines(keepends=True)
    assert change(lines[row]) != lines[row]
    lines[row] = change(lines[row])
    starts = [sum(map(len, lines[:place])) for place in range(len(lines))]
    path.write_bytes(b"".join(lines))
    path.with_suffix(".offsets").unlink()
    if offsets:
        path.with_suffix(".offsets").write_bytes(b"".join(start.to_bytes(8, "little") for start in starts))
    return starts[row]


@pytest.mark.parametrize(("change", "wrong"), BROKEN.values(), ids=BROKEN)
def test_broken_row_keeps_its_place(
    change: Callable[[bytes], bytes], wrong: str, run: Run, ask: Callable[..., Any], tmp_path: Path
) -> None:
    start = damage(run.trajectories(2), 1, change)
    get = ask("runs", cache=tmp_path / "cache")
    found = get("/api/trajectories", run=ID, step_from=2, step_to=2)
    assert found.status_code == 200
    assert len(found.content) < 4000
    assert [each["at"] for each in found.json()["rows"]] == SECOND
    assert (found.json()["total"], found.json()["next"]) == (4, None)
    row = found.json()["rows"].pop(1)
    assert row.keys() == {"at", "step", "row", "broken"}
    named = f"row 1 of trajectories/step-2.jsonl, at byte {start}, is not a trajectory: "
    assert row["broken"].startswith(named + wrong)
    assert [each["broken"] for each in found.json()["rows"] if each["at"] != "2.1"] == [None] * 3
    alone = get("/api/trajectory", run=ID, at="2.1")
    assert (alone.status_code, alone.json()["detail"]) == (503, row["broken"])
    assert get("/api/trajectory", run=ID, at="2.2").json()["question_id"] == "q9"
    paged = get("/api/trajectories", run=ID, step_to=2, limit=2).json()
    assert (len(paged["rows"]), paged["next"]) == (2, "2.1")


TEXT_IS_VALID = {"group of words", "group of no size", "unknown stop", "reward of words"}
HEADER_IS_VALID = {
    "torn among its numbers",
    "turns of words",
    "hits of numbers",
    "ids of words",
    "origins without end",
}


@pytest.mark.parametrize("name", [name for name in BROKEN if name not in HEADER_IS_VALID])
def test_filters_skip_broken_rows(name: str, run: Run, ask: Callable[..., Any], tmp_path: Path) -> None:
    damage(run.trajectories(2), 1, BROKEN[name][0])
    only = {"run": ID, "step_from": 2, "step_to": 2}
    for get in (ask("runs", cache=tmp_path / "cache"), ask("runs", cache=tmp_path / "cache")):  # read, then kept
        for wanted in ({"reward_min": -1e9}, {"source": "library"}, {"stop": "answered"}):
            found = get("/api/trajectories", **only, **wanted).json()
            assert [each["at"] for each in found["rows"]] == ["2.0", "2.2", "2.3"], wanted
            assert (found["complete"], found["total"]) == (True, 3)
        said = [each["at"] for each in get("/api/trajectories", **only, text="WROTE").json()["rows"]]
        assert said == (SECOND if name in TEXT_IS_VALID else ["2.0", "2.2", "2.3"])
        assert get("/api/trajectories", **only, group=2).json()["total"] == 1
        assert get("/api/trajectories", **only, question="q9", reward_max=0).json()["rows"][0]["at"] == "2.3"
        counts = {each["question_id"]: each["trajectories"] for each in get("/api/questions", run=ID).json()["rows"]}
        assert counts == {"q9": 6, "q1": 2, "q2": 1, "q3": 2}


@pytest.mark.parametrize("name", sorted(HEADER_IS_VALID))
def test_rows_with_a_valid_header_are_counted(name: str, run: Run, ask: Callable[..., Any]) -> None:
    damage(run.trajectories(2), 1, BROKEN[name][0])
    get = ask("runs")
    found = get("/api/trajectories", run=ID, question="q2").json()
    assert (found["total"], [each["at"] for each in found["rows"]]) == (2, ["2.0", "2.1"])
    assert [each["broken"] is None for each in found["rows"]] == [True, False]
    group = get("/api/group", run=ID, step=2, group=2).json()
    assert [each["at"] for each in group["samples"]] == ["2.0"]
    assert group["broken"] == [found["rows"][1]["broken"]]
    steps = get("/api/question", run=ID, question="q2").json()
    assert (steps["left_out"], [each["samples"] for each in steps["steps"]]) == (1, [1])


def test_lines_are_rows_without_offsets(run: Run, ask: Callable[..., Any]) -> None:
    damage(run.trajectories(2), 1, lambda line: line[:99] + b"\n", offsets=False)
    get = ask("runs")
    found = get("/api/trajectories", run=ID, step_from=2, step_to=2).json()
    assert [each["at"] for each in found["rows"]] == SECOND
    assert (found["total"], found["complete"]) == (4, True)
    assert "row 1 of trajectories/step-2.jsonl, at byte" in found["rows"][1]["broken"]
    assert get("/api/trajectories", run=ID, step_from=2, step_to=2, reward_min=0).json()["total"] == 3
    assert get("/api/trajectory", run=ID, at="2.3").json()["question_id"] == "q9"


def test_comparison_with_a_broken_row(evaluate: Evaluate, ask: Callable[..., Any]) -> None:
    path = evaluate("a", ["Ada", "Bob"]).path / "trajectories.jsonl"
    evaluate("b", ["Ada", "Ada"])
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first[:50] + b"\n" + second)
    get = ask("evaluations")
    rows = get("/api/trajectories", evaluation="evaluations/a").json()["rows"]
    assert ["row 0 of trajectories.jsonl, at byte 0" in str(each["broken"]) for each in rows] == [True, False]
    compared = get("/api/compare", first="evaluations/a", second="evaluations/b").json()["rows"]
    assert [each["first"]["at"] for each in compared] == ["0.1", None]


@pytest.mark.parametrize("start", [10**6, 2**64 - 1], ids=["cut file", "no offsets"])
def test_offset_beyond_the_file(start: int, run: Run, ask: Callable[..., Any]) -> None:
    offsets = run.trajectories(2).with_suffix(".offsets")
    offsets.write_bytes(offsets.read_bytes()[:24] + start.to_bytes(8, "little"))
    get = ask("runs")
    found = get("/api/trajectories", run=ID, step_from=2, step_to=2).json()["rows"]
    assert [each["broken"] is None for each in found] == [True, True, True, False]
    assert found[3]["broken"].endswith(f"at byte {start}, is not a trajectory: the file ends before it")
    assert get("/api/trajectory", run=ID, at="2.3").status_code == 503
    assert get("/api/trajectories", run=ID, step_from=2, step_to=2, reward_min=0).json()["total"] == 3


def test_repaired_file_is_read_again(run: Run, ask: Callable[..., Any]) -> None:
    path, get = run.trajectories(2), ask("runs")
    whole = path.read_bytes()
    wanted = {"run": ID, "step_from": 2, "step_to": 2, "reward_min": 0}
    path.write_bytes(whole.replace(b'"group":2,', b'"group":[,', 1))
    assert get("/api/trajectories", **wanted).json()["total"] == 3
    path.write_bytes(whole)
    assert get("/api/trajectories", **wanted).json()["total"] == 4


def test_unreadable_token_log(run: Run, ask: Callable[..., Any]) -> None:
    run.write_token_log(2, [{"advantage": 1.0}] * 4)
    path = run.trajectories(2).with_suffix(".learned.jsonl")
    path.write_bytes(path.read_bytes()[:30])
    get = ask("runs")
    assert "remove trajectories/step-2.learned.jsonl" in get("/api/trajectory", run=ID, at="2.1").json()["detail"]
    assert get("/api/trajectory", run=ID, at="2.3").json()["advantage"] is None


REFUSED: dict[str, tuple[str, dict[str, Any], int]] = {
    "no such row": ("/api/trajectory", {"run": ID, "at": "2.9"}, 404),
    "no such step": ("/api/trajectory", {"run": ID, "at": "8.0"}, 404),
    "no place": ("/api/trajectory", {"run": ID, "at": "../../etc/passwd"}, 400),
    "negative place": ("/api/trajectory", {"run": ID, "at": "2.-1"}, 400),
    "no run": ("/api/trajectories", {"run": "runs/second"}, 404),
    "neither": ("/api/trajectories", {}, 400),
    "both": ("/api/trajectories", {"run": ID, "evaluation": ID}, 400),
    "misspelt": ("/api/trajectories", {"run": ID, "rewardmin": 1}, 400),
    "no number": ("/api/trajectories", {"run": ID, "reward_min": "nan"}, 400),
    "no stop": ("/api/trajectories", {"run": ID, "stop": "bored"}, 400),
    "too many": ("/api/trajectories", {"run": ID, "limit": 100000}, 400),
    "cursor": ("/api/trajectories", {"run": ID, "cursor": "x"}, 400),
    "missing": ("/api/trajectory", {"run": ID}, 400),
    "no question": ("/api/question", {"run": ID, "question": "q77"}, 404),
}


@pytest.mark.parametrize(("path", "wanted", "status"), REFUSED.values(), ids=REFUSED)
def test_invalid_requests(path: str, wanted: dict[str, Any], status: int, run: Run, ask: Callable[..., Any]) -> None:
    found = ask("runs")(path, **wanted)
    assert found.status_code == status
    assert len(found.json()["detail"]) > 20


def test_group_with_an_inconsistent_sample(run: Run, ask: Callable[..., Any]) -> None:
    damage(run.trajectories(2), 2, lambda line: line.replace(b'["given",', b'["given",9', 1))
    found = ask("runs")("/api/group", run=ID, step=2, group=9).json()
    assert [sample["at"] for sample in found["samples"]] == ["2.3"]
    assert "the origins of the trajectory cover" in found["broken"][0]
    assert found["question_id"] == "q9"

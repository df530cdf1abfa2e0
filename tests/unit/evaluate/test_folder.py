"""The folder of an evaluation: asked, killed, gone on with, scored again, refused."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sleuth.agent.episode import Agent, Task
from sleuth.errors import InputError
from sleuth.evaluate.asking import ask
from sleuth.evaluate.finish import RUBRIC, chosen, failures, finish, measured
from sleuth.evaluate.folder import OFFSETS, TRAJECTORIES, Folder, hashed
from sleuth.evaluate.marks import read
from sleuth.evaluate.saved import restored, written
from sleuth.evaluate.suite import evaluate
from sleuth.records import Question
from sleuth.runs import read_row

ABOUT: dict[str, Any] = {"title": "Test", "stamp": {"model": {"sha256": "abc"}}, "sample": None, "notes": []}
TEXTS = ("oslo", "search oslo", "rome", "search rome", "oslo in norway", "search")


def questions(*texts: str) -> list[Question]:
    # Two sets whose ids are the same: only places tell them apart.
    return [Question(str(n // 2), text, ("oslo",), f"set {n % 2}") for n, text in enumerate(texts)]


def begun(path: Path, *texts: str) -> Folder:
    return Folder.begun(path, ABOUT, questions(*texts))


def asked(folder: Folder, agent: Agent, **more: Any) -> list[int]:
    done: list[int] = []
    asyncio.run(ask(agent, folder, RUBRIC, concurrent=2, done=lambda each: done.append(each.group), **more))
    return done


def timeless(found: Any) -> Any:
    return {
        name: timeless(value) if isinstance(value, dict) else value
        for name, value in found.items()
        if name not in ("seconds", "wall_seconds")
    }


def test_figures_are_those_of_an_evaluation_in_memory(tmp_path: Path, agent: Agent) -> None:
    folder = begun(tmp_path / "e", *TEXTS)
    assert sorted(asked(folder, agent)) == list(range(6))
    found = finish(folder, measured(folder))
    memory = asyncio.run(evaluate(agent, questions(*TEXTS), RUBRIC))
    for measure in ("em", "f1", "cover_em", "format", "retrieval_hit", "searches"):
        mean = memory.part(measure)
        assert (found[measure]["value"], found[measure]["low"]) == pytest.approx((mean.value, mean.low)), measure
    tokens = [sum(each.trajectory.sampled) for each in memory.asked]
    assert found["tokens"]["value"] == pytest.approx(sum(tokens) / 6)
    assert list(found["sets"]) == ["set 0", "set 1"]
    means = [found["sets"][name]["em"]["value"] for name in found["sets"]]
    assert found["mean"]["em"]["value"] == pytest.approx(sum(means) / 2)
    assert json.loads((folder.path / "results.json").read_text()) == found
    assert "| mean over the sets | 6 |" in (folder.path / "results.md").read_text()
    assert "<h1>Test</h1>" in (folder.path / "results.html").read_text()


def test_scored_again_it_is_the_same(tmp_path: Path, agent: Agent) -> None:
    folder = begun(tmp_path / "e", *TEXTS)
    asked(folder, agent)
    first = finish(folder, measured(folder))
    assert finish(Folder.open(folder.path), measured(folder)) == first
    said = {row["group"]: row["score"]["parts"] for row in folder.rows()}
    for place, mark in enumerate(measured(folder)):
        assert mark.values is not None
        assert {name: mark.values[name] for name in said[place]} == said[place]


def test_a_row_is_found_by_its_question_and_read_again(tmp_path: Path, agent: Agent) -> None:
    folder = begun(tmp_path / "e", *TEXTS)
    asked(folder, agent)
    finish(folder, measured(folder))
    for place, question in enumerate(questions(*TEXTS)):
        row = read_row(folder.path / TRAJECTORIES, place)
        assert (row["group"], row["question"]) == (place, question.question)
    trajectory = asyncio.run(agent.run(Task(questions(*TEXTS)[1], group=1)))
    assert restored(json.loads(json.dumps(written(trajectory, None))), trajectory.question) == trajectory


@pytest.mark.parametrize("torn", [b"", b'{"half": '], ids=["between rows", "within a row"])
def test_what_was_killed_asks_only_what_is_missing(tmp_path: Path, agent: Agent, torn: bytes) -> None:
    whole, part = begun(tmp_path / "whole", *TEXTS), begun(tmp_path / "part", *TEXTS)
    asked(whole, agent)
    lines = (whole.path / TRAJECTORIES).read_bytes().splitlines(keepends=True)
    (part.path / TRAJECTORIES).write_bytes(b"".join(lines[:2]) + torn)
    again = begun(tmp_path / "part", *TEXTS)
    assert len(asked(again, agent)) == 4
    assert asked(again, agent) == []
    first, second = finish(whole, measured(whole)), finish(again, measured(again))
    assert timeless(first) == timeless(second)
    assert len((again.path / TRAJECTORIES).read_bytes().splitlines()) == 6


def test_what_failed_is_counted_and_asked_again(tmp_path: Path, agent: Agent) -> None:
    folder = begun(tmp_path / "e", "oslo", "search book", "fail")
    assert sorted(asked(folder, agent)) == [0, 1, 2]
    marks = measured(folder)
    assert [mark.values is None for mark in marks] == [False, True, True]
    found = finish(folder, marks)
    assert (found["questions"], found["unusable"], found["em"]["count"]) == (3, 2, 1)
    assert str(failures(folder, marks)).startswith("2 of 3 questions were lost (no answer for the query 'book'")
    assert sorted(asked(folder, agent)) == [1, 2]
    assert len(Folder.open(folder.path).places()) == 3


def test_where_nothing_was_answered_it_is_said(tmp_path: Path, agent: Agent) -> None:
    folder = begun(tmp_path / "e", "fail", "fail again")
    asked(folder, agent)
    with pytest.raises(InputError, match=r"no question was answered \(out of luck\); mend what failed"):
        failures(folder, measured(folder))


def test_another_stamp_is_refused(tmp_path: Path) -> None:
    begun(tmp_path / "e", *TEXTS)
    other = {**ABOUT, "stamp": {"model": {"sha256": "abd"}}}
    with pytest.raises(InputError, match=r"was begun with another model.sha256 \(abc there, abd here\); choose anot"):
        Folder.begun(tmp_path / "e", other, questions(*TEXTS))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "holds no manifest.json"), ('{"kind": "run", "format": 1}', "holds 'run' of format 1")],
)
def test_what_is_no_evaluation_is_refused(tmp_path: Path, content: str | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=sentence):
        Folder.open(tmp_path)


def test_only_what_holds_no_answer_is_removed(tmp_path: Path, agent: Agent) -> None:
    empty, full = begun(tmp_path / "empty", *TEXTS), begun(tmp_path / "full", *TEXTS)
    asked(full, agent)
    for each in (empty, full):
        each.forsake()
    assert (empty.path.exists(), full.path.exists()) == (False, True)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    folder = begun(tmp_path / "e", *TEXTS)
    with folder.held(), pytest.raises(InputError, match="another process is asking in"), folder.held():
        raise AssertionError("both hold it")


def test_questions_are_what_they_were(tmp_path: Path) -> None:
    asked_for = [Question("1", "Who?", ("a", "b"), "s", ("p",), "bridge", 2, True, ({"role": "user", "content": "?"},))]
    folder = Folder.begun(tmp_path / "e", ABOUT, asked_for)
    assert folder.questions() == asked_for
    assert hashed(asked_for) == hashed(folder.questions()) != hashed(questions("Who?"))


def test_unfinished_has_no_marks(tmp_path: Path) -> None:
    folder = begun(tmp_path / "e", *TEXTS)
    assert not (folder.path / OFFSETS).exists()
    with pytest.raises(InputError, match="is no finished evaluation"):
        read(folder.path)


def test_episodes_worth_reading_are_of_every_set(tmp_path: Path, agent: Agent) -> None:
    folder = begun(tmp_path / "e", *TEXTS)
    asked(folder, agent)
    marks = measured(folder)
    shown = chosen(marks, 4)
    assert len(shown) == 4
    assert {marks[place].question.data_source for place in shown} == {"set 0", "set 1"}
    assert {(marks[place].values or {})["em"] for place in shown} == {0.0, 1.0}

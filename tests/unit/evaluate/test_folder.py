"""The folder of an evaluation: asked, killed, gone on with, scored again, refused."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sleuth.agent.episode import Agent, Task
from sleuth.agent.single import Single
from sleuth.config.agent import AgentConfig
from sleuth.errors import ConfigError, InputError
from sleuth.evaluate.asking import HOPELESS, Clock, ask
from sleuth.evaluate.finish import RUBRIC, chosen, failures, finish, measured
from sleuth.evaluate.folder import OFFSETS, RESULTS, TIME, TRAJECTORIES, Folder, hashed, same_but_for_code
from sleuth.evaluate.marks import read
from sleuth.evaluate.saved import restored, written
from sleuth.evaluate.suite import evaluate
from sleuth.records import Question
from sleuth.runs.json_files import read_row

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
        assert found[measure]["value"] == pytest.approx(memory.part(measure).value), measure
    assert found["em"]["low"] == pytest.approx(memory.part("em").low)
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
    cut = replace(trajectory, turns=tuple(replace(turn, shown="Doc 1") for turn in trajectory.turns))
    for each in (trajectory, cut):
        assert restored(json.loads(json.dumps(written(each, None))), each.question) == each
    with pytest.raises(InputError, match="has trajectory format 2"):
        restored(written(trajectory, None) | {"version": 2}, trajectory.question)


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


def test_what_is_written_after_a_look_is_seen(tmp_path: Path, agent: Agent) -> None:
    folder = begun(tmp_path / "e", *TEXTS)
    assert folder.places() == {}
    asked(folder, agent)
    before = folder.places()
    with folder.writing() as write:
        write({**next(folder.rows([2])), "sample": 7})
    after = folder.places()
    assert after[2].start > before[2].start
    assert {**after, 2: before[2]} == before
    assert [(row["group"], row["sample"]) for row in folder.rows([2, 0, 99])] == [(0, 0), (2, 7)]


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
    with (
        folder.held(),
        pytest.raises(InputError, match="another process"),
        folder.held(),
    ):
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


def test_what_was_never_asked_is_not_lost_and_nothing_is_published(tmp_path: Path, agent: Agent) -> None:
    folder = begun(tmp_path / "e", *TEXTS)
    asked(folder, agent)
    lines = (folder.path / TRAJECTORIES).read_bytes().splitlines(keepends=True)
    (folder.path / TRAJECTORIES).write_bytes(b"".join(lines[:2]))
    with pytest.raises(InputError, match=r"is not finished: 4 of its 6 questions were never asked; give the command"):
        measured(folder)


def test_marks_without_results_are_no_finished_evaluation(tmp_path: Path, agent: Agent) -> None:
    folder = begun(tmp_path / "e", *TEXTS)
    asked(folder, agent)
    finish(folder, measured(folder))
    assert [mark.stop for mark in read(folder.path)] == ["answered"] * 6
    (folder.path / RESULTS).unlink()
    with pytest.raises(InputError, match=r"there is no results.json in it or beside it; finish a folder by giving the"):
        read(folder.path)


def test_prompts_that_do_not_fit_are_counted_and_said(tmp_path: Path, agent: Agent) -> None:
    folder = begun(tmp_path / "e", "oslo", "search oslo, " + "and so on " * 20)
    asked(folder, replace(agent, config=AgentConfig(prompt="brief", context_tokens=100)))
    marks = measured(folder)
    assert failures(folder, marks) is None
    found = finish(folder, marks)
    assert found["stops"] == {"answered": 1, "out_of_tokens": 1}
    told = (folder.path / "results.md").read_text()
    assert "The prompt did not fit for 1 questions, which count as wrong: raise agent.context_tokens" in told
    assert "How the episodes ended: answered 1, out of tokens 1." in told
    assert "The prompt did not fit for 1 questions" in (folder.path / "results.html").read_text()


def test_where_no_prompt_fits_there_are_no_figures(tmp_path: Path, agent: Agent) -> None:
    folder = begun(tmp_path / "e", "oslo", "rome")
    config = AgentConfig(method="rag", prompt="rag-brief", context_tokens=6)
    asked(folder, replace(agent, config=config, method=Single(retrieves=True)))
    marks = measured(folder)
    assert [(mark.values or {})["retrieval_hit"] for mark in marks] == [0.0, 0.0]
    with pytest.raises(ConfigError, match=r"did not fit for any question.*raise agent.context_tokens"):
        failures(folder, marks)


@pytest.mark.parametrize("garbage", [b"\x00garbage\n", b"[1]\n", b'{"group": 1, "stop": "tired"}\n', b"{}\n"])
def test_a_line_that_is_no_trajectory_is_one_sentence(tmp_path: Path, agent: Agent, garbage: bytes) -> None:
    folder = begun(tmp_path / "e", *TEXTS)
    asked(folder, agent)
    with (folder.path / TRAJECTORIES).open("ab") as file:
        file.write(garbage)
    with pytest.raises(InputError, match=r"trajectories.jsonl, line 7 is no trajectory .*; remove that line"):
        measured(folder)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    folder = begun(tmp_path / "e", *TEXTS)
    (folder.path / "lock").mkdir()
    with pytest.raises(InputError, match=r"e cannot be written .*; make it writable"), folder.held():
        raise AssertionError("it is held")


def test_the_time_of_a_session_that_broke_off_counts(tmp_path: Path, agent: Agent) -> None:
    folder = begun(tmp_path / "e", *TEXTS)

    def broken(_: object) -> None:
        raise OSError("the screen is gone")

    folder.write_seconds(100.0)
    with pytest.raises(OSError, match="the screen is gone"):
        asyncio.run(ask(agent, folder, RUBRIC, concurrent=1, done=broken))
    first = folder.seconds()
    assert first is not None
    assert first > 100.0
    asked(folder, agent)
    assert finish(folder, measured(folder))["wall_seconds"] > first


def test_the_time_is_written_along(tmp_path: Path) -> None:
    folder = begun(tmp_path / "e", *TEXTS)
    clock = Clock.of(folder)
    clock.tick()
    assert not (folder.path / TIME).exists()
    clock.began -= 30.0
    clock.tick()
    assert 30.0 <= (folder.seconds() or 0.0) < 40.0


@pytest.mark.parametrize(("first", "given_up"), [("search book", True), ("search oslo", False)])
def test_where_every_search_fails_the_rest_is_not_asked(
    tmp_path: Path, agent: Agent, first: str, given_up: bool
) -> None:
    folder = begun(tmp_path / "e", first, "oslo", *["search book"] * (HOPELESS + 20))
    if given_up:
        with pytest.raises(InputError, match=f"the searches of the first {HOPELESS} questions all failed .no answer"):
            asked(folder, agent)
    else:
        asked(folder, agent)
    places = folder.places()
    assert (len(places) < HOPELESS + 10) is given_up
    assert places[1].usable


def test_an_evaluation_by_another_version_of_the_code_is_found(tmp_path: Path) -> None:
    about: dict[str, Any] = {**ABOUT, "stamp": {"model": {"sha256": "abc"}, "shots": (1, 2), "code": "1.0"}}
    there = Folder.begun(tmp_path / "model-rag-1", about, questions(*TEXTS))
    (tmp_path / "model-rag-0").mkdir()
    (tmp_path / "model-rag-0" / "manifest.json").write_text("{torn")
    stamp = {**about["stamp"], "code": "2.0"}
    assert same_but_for_code(tmp_path, "model-rag", stamp) == there
    assert same_but_for_code(tmp_path, "model-cot", stamp) is None
    assert same_but_for_code(tmp_path, "model-rag", {**stamp, "model": {"sha256": "abd"}}) is None


def test_a_failure_written_later_does_not_hide_what_was_answered(tmp_path: Path) -> None:
    folder = begun(tmp_path / "evaluation", "oslo", "rome")
    rows = [(0, "answered"), (1, "engine_failed"), (0, "engine_failed"), (1, "answered")]
    lines = [json.dumps({"group": group, "stop": stop}) + "\n" for group, stop in rows]
    (folder.path / TRAJECTORIES).write_text("".join(lines))
    found = folder.places()
    assert [(found[group].start, found[group].usable) for group in (0, 1)] == [
        (0, True),
        (len("".join(lines[:3])), True),
    ]

"""The evaluation folder: created, resumed, scored again, damaged."""

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sleuth.agent.conversation import OnText
from sleuth.agent.episode import Agent
from sleuth.agent.methods import OneTurn
from sleuth.agent.task import Task
from sleuth.config.agent import AgentConfig
from sleuth.config.reward import RewardConfig
from sleuth.errors import ConfigError, InputError
from sleuth.evaluate.folder import (
    OFFSETS,
    RESULTS,
    TRAJECTORIES,
    EvaluationFolder,
    find_other_version,
    hash_questions,
    read_trajectory,
    row_with_passages,
)
from sleuth.evaluate.report import check_failures, load_results, select_transcripts, write_report
from sleuth.evaluate.results import read_results
from sleuth.evaluate.runner import evaluate, evaluate_folder
from sleuth.records import Question, Score, Segment, Trajectory
from sleuth.reward.rubric import Rubric
from sleuth.runs.json_files import read_row

ABOUT: dict[str, Any] = {"title": "Test", "stamp": {"model": {"sha256": "abc"}}, "sample": None, "notes": []}
WRITER = Segment((5, 6, 7), (False, True, True), (-0.5, -1.0), (0, 1), "writer", 0, 1, ((1, 2),), (0.7, 0.7))
TEXTS = ("oslo", "search oslo", "rome", "search rome", "oslo in norway", "search")


def questions(*texts: str) -> list[Question]:
    # Two data sets with the same ids: only positions tell them apart.
    return [Question(str(n // 2), text, ("oslo",), f"set {n % 2}") for n, text in enumerate(texts)]


def new_folder(path: Path, *texts: str) -> EvaluationFolder:
    return EvaluationFolder.create_or_resume(path, ABOUT, questions(*texts))


def ask(folder: EvaluationFolder, agent: Agent, **more: Any) -> list[int]:
    done: list[int] = []
    asyncio.run(
        evaluate_folder(agent, folder, concurrent=2, on_result=lambda each: done.append(each.trajectory.group), **more)
    )
    return done


def timeless(found: Any) -> Any:
    return {
        name: timeless(value) if isinstance(value, dict) else value
        for name, value in found.items()
        if name not in ("seconds", "wall_seconds")
    }


def test_folder_and_memory_give_the_same_figures(tmp_path: Path, agent: Agent) -> None:
    folder = new_folder(tmp_path / "e", *TEXTS)
    assert sorted(ask(folder, agent)) == list(range(6))
    found = write_report(folder, load_results(folder))
    memory = asyncio.run(evaluate(agent, questions(*TEXTS), Rubric(RewardConfig())))
    for measure in ("em", "f1", "cover_em", "format", "retrieval_hit", "searches"):
        assert found[measure]["value"] == pytest.approx(memory.mean(measure).value), measure
    assert found["em"]["low"] == pytest.approx(memory.mean("em").low)
    tokens = [sum(each.sampled) for each in memory.trajectories]
    assert found["tokens"]["value"] == pytest.approx(sum(tokens) / 6)
    assert list(found["sets"]) == ["set 0", "set 1"]
    means = [found["sets"][name]["em"]["value"] for name in found["sets"]]
    assert found["mean"]["em"]["value"] == pytest.approx(sum(means) / 2)
    assert json.loads((folder.path / "results.json").read_text()) == found
    assert "| mean over the sets | 6 |" in (folder.path / "results.md").read_text()
    assert "<h1>Test</h1>" in (folder.path / "results.html").read_text()


def test_results_from_memory_equal_those_read_from_the_folder(tmp_path: Path, agent: Agent) -> None:
    folder = new_folder(tmp_path / "e", *TEXTS)
    half = [folder.questions()[place] for place in range(3)]
    with folder.appending() as append:
        asyncio.run(
            evaluate(
                agent, half, Rubric(RewardConfig()),
                on_result=lambda each: append(row_with_passages(each.trajectory, each.score, each.seconds)),
            )
        )  # fmt: skip
    asked = asyncio.run(evaluate_folder(agent, folder))
    assert sorted(asked.results) == [3, 4, 5]
    assert all(result.episode is None for result in asked.results.values())
    assert load_results(folder, asked.results) == load_results(folder)


@dataclass
class SelfScoring:
    """An agent that computes its own reward, as agents behind the gateway may."""

    agent: Agent

    async def run(self, task: Task, order: int = 0, on_text: OnText | None = None) -> Trajectory:
        return replace(await self.agent.run(task, order, on_text), reward=Score(0.5, {"own": 0.7}))


def test_the_reward_of_an_agent_is_no_result(tmp_path: Path, agent: Agent) -> None:
    folder = new_folder(tmp_path / "e", *TEXTS)
    asked = asyncio.run(evaluate_folder(SelfScoring(agent), folder))
    assert load_results(folder, asked.results) == load_results(folder)
    assert all(result.values is not None and "own" not in result.values for result in asked.results.values())


def test_rescoring_gives_the_same_figures(tmp_path: Path, agent: Agent) -> None:
    folder = new_folder(tmp_path / "e", *TEXTS)
    ask(folder, agent)
    first = write_report(folder, load_results(folder))
    assert write_report(EvaluationFolder.open(folder.path), load_results(folder)) == first
    said = {row["group"]: row["score"]["parts"] for row in folder.rows()}
    for place, result in enumerate(load_results(folder)):
        assert result.values is not None
        assert {name: result.values[name] for name in said[place]} == said[place]


def test_rows_are_found_by_position_and_restore_the_trajectory(tmp_path: Path, agent: Agent) -> None:
    folder = new_folder(tmp_path / "e", *TEXTS)
    ask(folder, agent)
    write_report(folder, load_results(folder))
    for place, question in enumerate(questions(*TEXTS)):
        row = read_row(folder.path / TRAJECTORIES, place)
        assert (row["group"], row["question"]) == (place, question.question)
    trajectory = asyncio.run(agent.run(Task(questions(*TEXTS)[1], group=1)))
    cut = replace(trajectory, turns=tuple(replace(turn, shown="Doc 1") for turn in trajectory.turns))
    several = replace(
        trajectory, segments=(*trajectory.segments, WRITER), reward=Score(0.5, {"style": 1.0}, (0.1, 0.2))
    )
    without_tokens = replace(trajectory, segments=())
    for each in (trajectory, cut, several, without_tokens):
        assert read_trajectory(json.loads(json.dumps(row_with_passages(each, None))), each.question) == each
    with pytest.raises(InputError, match="format 3"):
        read_trajectory(row_with_passages(trajectory, None) | {"version": 3}, trajectory.question)


@pytest.mark.parametrize("torn", [b"", b'{"half": '], ids=["between rows", "within a row"])
def test_resuming_asks_only_missing_questions(tmp_path: Path, agent: Agent, torn: bytes) -> None:
    whole, part = new_folder(tmp_path / "whole", *TEXTS), new_folder(tmp_path / "part", *TEXTS)
    ask(whole, agent)
    lines = (whole.path / TRAJECTORIES).read_bytes().splitlines(keepends=True)
    (part.path / TRAJECTORIES).write_bytes(b"".join(lines[:2]) + torn)
    again = new_folder(tmp_path / "part", *TEXTS)
    assert len(ask(again, agent)) == 4
    assert ask(again, agent) == []
    first, second = write_report(whole, load_results(whole)), write_report(again, load_results(again))
    assert timeless(first) == timeless(second)
    assert len((again.path / TRAJECTORIES).read_bytes().splitlines()) == 6


def test_failed_questions_are_counted_and_asked_again(tmp_path: Path, agent: Agent) -> None:
    folder = new_folder(tmp_path / "e", "oslo", "search book", "fail")
    assert sorted(ask(folder, agent)) == [0, 1, 2]
    results = load_results(folder)
    assert [result.values is None for result in results] == [False, True, True]
    found = write_report(folder, results)
    assert (found["questions"], found["unusable"], found["em"]["count"]) == (3, 2, 1)
    assert str(check_failures(folder, results)).startswith("2 of 3 questions failed (")
    assert sorted(ask(folder, agent)) == [1, 2]
    assert len(EvaluationFolder.open(folder.path).locations()) == 3


def test_appended_rows_are_seen(tmp_path: Path, agent: Agent) -> None:
    folder = new_folder(tmp_path / "e", *TEXTS)
    assert folder.locations() == {}
    ask(folder, agent)
    before = folder.locations()
    with folder.appending() as write:
        write({**next(folder.rows([2])), "sample": 7})
    after = folder.locations()
    assert after[2].start > before[2].start
    assert {**after, 2: before[2]} == before
    assert [(row["group"], row["sample"]) for row in folder.rows([2, 0, 99])] == [(0, 0), (2, 7)]


def test_no_answer_at_all_raises(tmp_path: Path, agent: Agent) -> None:
    folder = new_folder(tmp_path / "e", "fail", "fail again")
    ask(folder, agent)
    with pytest.raises(InputError, match="out of luck"):
        check_failures(folder, load_results(folder))


def test_a_different_stamp_raises(tmp_path: Path) -> None:
    new_folder(tmp_path / "e", *TEXTS)
    other = {**ABOUT, "stamp": {"model": {"sha256": "abd"}}}
    with pytest.raises(InputError, match=r"model.sha256 \(abc .*abd .*--out"):
        EvaluationFolder.create_or_resume(tmp_path / "e", other, questions(*TEXTS))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "manifest.json"), ('{"kind": "run", "format": 1}', "'run' of format 1")],
)
def test_opening_something_else_raises(tmp_path: Path, content: str | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=sentence):
        EvaluationFolder.open(tmp_path)


def test_only_empty_folders_are_removed(tmp_path: Path, agent: Agent) -> None:
    empty, full = new_folder(tmp_path / "empty", *TEXTS), new_folder(tmp_path / "full", *TEXTS)
    ask(full, agent)
    for each in (empty, full):
        each.remove_if_empty()
    assert (empty.path.exists(), full.path.exists()) == (False, True)


def test_two_processes_cannot_lock_a_folder(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "e", *TEXTS)
    with (
        folder.lock(),
        pytest.raises(InputError, match="another process"),
        folder.lock(),
    ):
        raise AssertionError("both hold the lock")


def test_questions_round_trip(tmp_path: Path) -> None:
    expected = [Question("1", "Who?", ("a", "b"), "s", ("p",), "bridge", 2, True, ({"role": "user", "content": "?"},))]
    folder = EvaluationFolder.create_or_resume(tmp_path / "e", ABOUT, expected)
    assert folder.questions() == expected
    assert hash_questions(expected) == hash_questions(folder.questions()) != hash_questions(questions("Who?"))


def test_unfinished_evaluation_has_no_results(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "e", *TEXTS)
    assert not (folder.path / OFFSETS).exists()
    with pytest.raises(InputError, match=r"marks\.jsonl"):
        read_results(folder.path)


def test_transcripts_are_selected_from_every_set(tmp_path: Path, agent: Agent) -> None:
    folder = new_folder(tmp_path / "e", *TEXTS)
    ask(folder, agent)
    results = load_results(folder)
    shown = select_transcripts(results, 4)
    assert len(shown) == 4
    assert {results[place].question.data_source for place in shown} == {"set 0", "set 1"}
    assert {(results[place].values or {})["em"] for place in shown} == {0.0, 1.0}


def test_missing_questions_raise(tmp_path: Path, agent: Agent) -> None:
    folder = new_folder(tmp_path / "e", *TEXTS)
    ask(folder, agent)
    lines = (folder.path / TRAJECTORIES).read_bytes().splitlines(keepends=True)
    (folder.path / TRAJECTORIES).write_bytes(b"".join(lines[:2]))
    with pytest.raises(InputError, match="4 of 6 questions"):
        load_results(folder)


def test_question_results_without_figures_are_unfinished(tmp_path: Path, agent: Agent) -> None:
    folder = new_folder(tmp_path / "e", *TEXTS)
    ask(folder, agent)
    write_report(folder, load_results(folder))
    assert [result.stop for result in read_results(folder.path)] == ["answered"] * 6
    (folder.path / RESULTS).unlink()
    with pytest.raises(InputError, match=r"results\.json"):
        read_results(folder.path)


def test_prompts_that_do_not_fit_are_counted(tmp_path: Path, agent: Agent) -> None:
    folder = new_folder(tmp_path / "e", "oslo", "search oslo, " + "and so on " * 20)
    ask(folder, replace(agent, config=AgentConfig(prompt="brief", context_tokens=100)))
    results = load_results(folder)
    assert check_failures(folder, results) is None
    found = write_report(folder, results)
    assert found["stops"] == {"answered": 1, "out_of_tokens": 1}
    text = (folder.path / "results.md").read_text()
    assert "The prompt did not fit for 1 questions, which count as wrong: raise agent.context_tokens" in text
    assert "Stop reasons: answered 1, out of tokens 1." in text
    assert "The prompt did not fit for 1 questions" in (folder.path / "results.html").read_text()


def test_no_fitting_prompt_raises(tmp_path: Path, agent: Agent) -> None:
    folder = new_folder(tmp_path / "e", "oslo", "rome")
    config = AgentConfig(method="rag", prompt="rag-brief", context_tokens=6)
    ask(folder, replace(agent, config=config, method=OneTurn(retrieves=True)))
    results = load_results(folder)
    assert [(result.values or {})["retrieval_hit"] for result in results] == [0.0, 0.0]
    with pytest.raises(ConfigError, match=r"did not fit for any question.*raise agent.context_tokens"):
        check_failures(folder, results)


@pytest.mark.parametrize("garbage", [b"\x00garbage\n", b"[1]\n", b'{"group": 1, "stop": "tired"}\n', b"{}\n"])
def test_an_invalid_row_raises(tmp_path: Path, agent: Agent, garbage: bytes) -> None:
    folder = new_folder(tmp_path / "e", *TEXTS)
    ask(folder, agent)
    with (folder.path / TRAJECTORIES).open("ab") as file:
        file.write(garbage)
    with pytest.raises(InputError, match=r"trajectories.jsonl, line 7 "):
        load_results(folder)


def test_an_unwritable_folder_raises(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "e", *TEXTS)
    (folder.path / "lock").mkdir()
    with pytest.raises(InputError, match=r"e cannot be written"), folder.lock():
        raise AssertionError("the lock is held")


def test_find_other_version(tmp_path: Path) -> None:
    about: dict[str, Any] = {**ABOUT, "stamp": {"model": {"sha256": "abc"}, "shots": (1, 2), "code": "1.0"}}
    there = EvaluationFolder.create_or_resume(tmp_path / "model-rag-1", about, questions(*TEXTS))
    (tmp_path / "model-rag-0").mkdir()
    (tmp_path / "model-rag-0" / "manifest.json").write_text("{torn")
    stamp = {**about["stamp"], "code": "2.0"}
    assert find_other_version(tmp_path, "model-rag", stamp) == there
    assert find_other_version(tmp_path, "model-cot", stamp) is None
    assert find_other_version(tmp_path, "model-rag", {**stamp, "model": {"sha256": "abd"}}) is None


def test_a_later_failure_does_not_replace_an_answer(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "evaluation", "oslo", "rome")
    rows = [(0, "answered"), (1, "engine_failed"), (0, "engine_failed"), (1, "answered")]
    lines = [json.dumps({"group": group, "stop": stop}) + "\n" for group, stop in rows]
    (folder.path / TRAJECTORIES).write_text("".join(lines))
    found = folder.locations()
    assert [(found[group].start, found[group].usable) for group in (0, 1)] == [
        (0, True),
        (len("".join(lines[:3])), True),
    ]

"""The order of questions by their outcomes: as computed by hand, and the same in a run that was killed and resumed."""

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.config.train import TrainConfig
from sleuth.records import Answer, Group, Outcome, Question, Score, Trajectory, Turn
from sleuth.runs.json_files import read_json, read_rows
from sleuth.runs.run import Run
from sleuth.train.curriculum import FOLDER, Curriculum, outcome_of, ranked_order, shuffled_order
from sleuth.train.data import QuestionStream
from sleuth.train.loop import train
from sleuth.train.observer import SilentObserver
from sleuth.train.parts import Parts
from sleuth.train.ranks import ALONE

Making = Callable[..., Parts]
Make = Callable[..., Trajectory]


def questions(count: int) -> list[Question]:
    return [Question(f"q{n}", "Who?", ("Ada",), "made") for n in range(count)]


@pytest.fixture
def group(trajectory: Make) -> Callable[..., Group]:
    def make(question: Question, *totals: float, em: float = 0.0) -> Group:
        samples = tuple(replace(trajectory(), question=question) for _ in totals)
        return Group(question, samples, tuple(Score(each, {"em": em}) for each in totals))

    return make


def test_questions_with_spread_come_first_and_solved_ones_last() -> None:
    outcomes = ["solved", "failed", "spread", None, "failed", "solved"]
    assert ranked_order([5, 4, 3, 2, 1, 0], outcomes, []) == [3, 2, 4, 1, 5, 0]


def test_recent_questions_wait_for_as_many_others() -> None:
    # Ranked: 3 2 4 1 5 0. Of the others, 2 and 1 come before the recent 3 and 4.
    outcomes = ["solved", "failed", "spread", None, "failed", "solved"]
    assert ranked_order([5, 4, 3, 2, 1, 0], outcomes, [3, 4]) == [2, 1, 3, 4, 5, 0]


def test_outcomes_of_groups(group: Callable[..., Group]) -> None:
    (question,) = questions(1)
    assert outcome_of(group(question, 0.0, 1.0)) == "spread"
    assert outcome_of(group(question, 0.2, 0.2)) == "failed"
    assert outcome_of(group(question, 1.0, 1.0, em=1.0)) == "solved"


def test_abstaining_solves_a_question_without_an_answer(group: Callable[..., Group]) -> None:
    unanswerable = Question("u", "Who?", (), "made", answerable=False)
    answered = group(unanswerable, 0.0, 0.0)
    assert outcome_of(answered) == "failed"
    silent = Turn("", Answer("I don't know"), Outcome.ANSWERED, 1)
    abstained = tuple(replace(each, turns=(silent,)) for each in answered.trajectories)
    assert outcome_of(replace(answered, trajectories=abstained)) == "solved"


def prepared(run: Path, asked: list[Question], last: int, step: int, **settings: Any) -> QuestionStream:
    curriculum = Curriculum(run, asked, TrainConfig(questions=1, **settings))
    curriculum.prepare(0, last, step, ALONE)
    return QuestionStream(asked, 0, shuffle=True, curriculum=curriculum)


def test_order_is_fixed_by_the_outcomes_up_to_a_step_and_kept(group: Callable[..., Group], tmp_path: Path) -> None:
    asked = questions(8)
    curriculum = Curriculum(tmp_path, asked, TrainConfig(questions=1))
    curriculum.record(1, [group(each, 1.0, 1.0, em=1.0) for each in asked[:4]])
    curriculum.record(2, [group(each, 0.0, 1.0) for each in asked[:2]])
    curriculum.record(3, [group(each, 0.0, 0.0) for each in asked[4:]])
    # Step 3 was later, so that nothing is known of q4 to q7. The last two of the first epoch wait for two others.
    outcomes = ["spread", "spread", "solved", "solved", None, None, None, None]
    expected = ranked_order(shuffled_order(8, 0, 1), outcomes, shuffled_order(8, 0, 0)[-2:])
    assert [each.id for each in prepared(tmp_path, asked, 15, 2).take(8, 8)] == [f"q{index}" for index in expected]
    assert [each.id for each in prepared(tmp_path, asked, 15, 3).take(8, 8)] == [f"q{index}" for index in expected]
    assert read_json(tmp_path / FOLDER / "epoch-1.json") == {"order": expected}


def test_repeated_step_counts_as_repeated(group: Callable[..., Group], tmp_path: Path) -> None:
    asked = questions(4)
    curriculum = Curriculum(tmp_path, asked, TrainConfig(questions=1))
    for outcome in ((1.0, 1.0), (0.0, 1.0)):  # the second time after a resume
        curriculum.record(1, [group(asked[0], *outcome, em=1.0)])
    curriculum.record(2, [group(each, 1.0, 1.0, em=1.0) for each in asked[1:]])
    last = asked[shuffled_order(4, 0, 0)[-1]].id
    order = [each.id for each in prepared(tmp_path, asked, 7, 2).take(4, 4)]
    assert last != "q0"  # which would have to wait
    assert order[0] == "q0"


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 40), step=st.integers(1, 6), seed=st.integers(0, 99), resample=st.integers(0, 2))
def test_every_epoch_has_every_question_and_none_soon_again(
    count: int, step: int, seed: int, resample: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = tmp_path_factory.mktemp("run")
    asked, train_config = questions(count), TrainConfig(questions=step, resample=resample, seed=seed)
    curriculum = Curriculum(run, asked, train_config)
    curriculum.prepare(0, 4 * count - 1, 0, ALONE)
    taken = [each.id for each in QuestionStream(asked, seed, shuffle=True, curriculum=curriculum).take(0, 4 * count)]
    for first in range(0, 4 * count, count):
        assert Counter(taken[first : first + count]) == Counter(each.id for each in asked)
    gap = min(count // 2, 2 * step * (1 + resample))
    for place, each in enumerate(taken):
        assert each not in taken[max(0, place - gap) : place]


REWARD = """
def uneven(question, trajectory):
    return trajectory.sample / 10 if int(question.id[1:]) % 2 else 0.0
"""


@pytest.fixture
def uneven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A reward by which odd questions have spread, and even ones are never solved."""
    (tmp_path / "uneven_reward.py").write_text(REWARD)
    monkeypatch.syspath_prepend(tmp_path)
    return "import:uneven_reward.uneven"


def asked_of(run: Run) -> list[list[str]]:
    """The questions of each step, in the order they were asked."""
    steps = [row["step"] for row in run.metrics()][1:]
    return [list(dict.fromkeys(row["question_id"] for row in read_rows(run.trajectories(step)))) for step in steps]


MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "ahead": {"train": {"mode": "ahead"}, "algorithm": {"correction": {"level": "token"}}},
}


@pytest.mark.parametrize("tables", MODES.values(), ids=MODES)
def test_killed_run_asks_what_an_uninterrupted_one_asks(
    tables: dict[str, Any], parts: Making, tmp_path: Path, uneven: str
) -> None:
    """Killed after an order was fixed, with a checkpoint from before; five questions, one a step, four epochs."""

    def made(name: str, steps: int) -> Parts:
        train = {"questions": 1, "samples": 2, "save_every": 3, "keep": 9, "curriculum": "spread", "steps": steps}
        return parts(
            tmp_path / name,
            reward={"answer": uneven},
            evaluate={"before": False, "after": False},
            algorithm=tables.get("algorithm", {}),
            train={**train, **tables.get("train", {})},
        )

    whole = made("whole", 20)
    train(whole, SilentObserver(), 0.0)
    asked = [question for step in asked_of(whole.run) for question in step]
    for first in range(0, 20, 5):
        assert sorted(asked[first : first + 5]) == ["q0", "q1", "q2", "q3", "q4"]
    for before, after in pairwise(asked):
        assert before != after
    third, outcomes = shuffled_order(5, 0, 2), ["failed", "spread", "failed", "spread", "failed"]
    recent = [int(question[1:]) for question in asked[8:10]]
    assert asked[10:15] == [f"q{index}" for index in ranked_order(third, outcomes, recent)]
    cut = made("cut", 13)
    train(cut, SilentObserver(), 0.0)
    for step in (12, 13):
        shutil.rmtree(cut.run.checkpoint(step))
    resumed = made("cut", 20)
    train(resumed, SilentObserver(), 0.0)
    assert asked_of(resumed.run) == asked_of(whole.run)
    assert (resumed.run.checkpoint(20) / "model.safetensors").read_bytes() == (
        whole.run.checkpoint(20) / "model.safetensors"
    ).read_bytes()


def test_run_without_a_curriculum_writes_nothing(parts: Making, tmp_path: Path, uneven: str) -> None:
    made = parts(tmp_path / "run", reward={"answer": uneven}, train={"steps": 1})
    train(made, SilentObserver(), 0.0)
    assert not (made.run.path / FOLDER).exists()

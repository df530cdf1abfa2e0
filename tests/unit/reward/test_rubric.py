"""Totals and parts of the rubric, tier by tier."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sleuth.config.reward import RewardConfig
from sleuth.errors import ConfigError, FunctionFailed
from sleuth.records import Malformed, Outcome, Question, StopReason, Trajectory, Turn
from sleuth.reward.rubric import Rubric

Make = Callable[..., Turn]
Play = Callable[..., Trajectory]
Judge = Callable[..., Rubric]

TIERED = RewardConfig(format=True, retrieval=0.1)


def test_every_part_is_reported(question: Question, play: Play, searched: Make, answered: Make) -> None:
    score = Rubric(RewardConfig()).score(question, play(searched("Oslo is old."), answered("Oslo Norway")))
    assert score.total == 0.0
    assert score.parts == {
        "em": 0.0,
        "f1": pytest.approx(2 / 3),  # one word shared of two said and one gold: 2 * 1 / (2 + 1)
        "cover_em": 1.0,
        "format": 1.0,
        "retrieval_hit": 1.0,
        "searches": 1.0,
    }


@pytest.mark.parametrize(("answer", "total"), [("em", 0.0), ("f1", 2 / 3), ("cover_em", 1.0)])
def test_the_total_is_the_metric_named(
    question: Question, play: Play, answered: Make, answer: str, total: float
) -> None:
    score = Rubric(RewardConfig(answer=answer)).score(question, play(answered("Oslo Norway")))
    assert score.total == pytest.approx(total)


@pytest.mark.parametrize(
    ("said", "formed", "found", "total"),
    [
        ("Oslo", True, "nothing", 1.0),
        ("Oslo", True, "Oslo is old.", 1.0),
        ("Oslo", False, "Oslo is old.", 0.8),
        ("Bergen", True, "nothing", 0.2),
        ("Bergen", True, "Oslo is old.", 0.2 + 0.1),
        ("Bergen", True, "Oslovian lore", 0.2),
        ("Bergen", False, "Oslo is old.", 0.1),
    ],
)
def test_the_tiers(
    question: Question,
    play: Play,
    searched: Make,
    answered: Make,
    said: str,
    formed: bool,
    found: str,
    total: float,
) -> None:
    trajectory = play(searched(found), answered(said, formed=formed))
    assert Rubric(TIERED).score(question, trajectory).total == total


@pytest.mark.parametrize(
    ("shown", "hit"),
    [
        (None, 1.0),
        ("Doc 1(Title: Norway) The capital is Oslo.", 1.0),
        ("Doc 1(Title: Norway) The capital is", 0.0),
        ("", 0.0),
    ],
)
def test_a_passage_counts_as_far_as_it_was_shown(
    question: Question, play: Play, searched: Make, answered: Make, shown: str | None, hit: float
) -> None:
    trajectory = play(replace(searched("The capital is Oslo."), shown=shown), answered("Bergen"))
    score = Rubric(TIERED).score(question, trajectory)
    assert score.parts["retrieval_hit"] == hit
    assert score.total == pytest.approx(0.2 + 0.1 * hit)


def test_words_of_the_frame_are_no_passage(question: Question, play: Play, searched: Make, answered: Make) -> None:
    asked = replace(question, golden_answers=("Doc", "Oslo"))
    trajectory = play(replace(searched("Bergen.", "Oslo"), shown="Doc 1(Title: x) Bergen."), answered("Bergen"))
    assert Rubric(TIERED).score(asked, trajectory).parts["retrieval_hit"] == 0.0


def test_a_graded_answer_lies_between_the_tiers(question: Question, play: Play, answered: Make) -> None:
    rubric = Rubric(RewardConfig(answer="f1", format=True))
    # F1 of "Oslo Norway" is 2/3: 1/3 * 0.2 + 2/3 * 1.0
    assert rubric.score(question, play(answered("Oslo Norway"))).total == pytest.approx(2.2 / 3)


@pytest.mark.parametrize("config", [RewardConfig(), RewardConfig(answer="cover_em"), TIERED])
def test_no_answer_scores_nothing_though_the_gold_stands_everywhere(
    question: Question, play: Play, searched: Make, config: RewardConfig
) -> None:
    mumbled = Turn("Oslo, surely Oslo", Malformed("no tag"), Outcome.CORRECTED, 5)
    trajectory = play(searched("<answer>Oslo</answer>"), mumbled, stop=StopReason.OUT_OF_TURNS)
    score = Rubric(config).score(question, trajectory)
    assert (score.total, score.parts["em"], score.parts["f1"], score.parts["cover_em"]) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("tags", "total"), [(10, 1.0), (11, 0.25)])
def test_more_than_ten_answer_tags_divide_by_four(
    question: Question, play: Play, answered: Make, tags: int, total: float
) -> None:
    trajectory = play(answered("Oslo", "<answer>" * tags + "Oslo</answer>"))
    assert Rubric(RewardConfig(many_answers=True)).score(question, trajectory).total == total
    assert Rubric(RewardConfig()).score(question, trajectory).total == 1.0


@pytest.mark.parametrize("stop", [StopReason.SEARCH_UNAVAILABLE, StopReason.ENGINE_FAILED])
def test_an_unusable_trajectory_has_no_score(question: Question, play: Play, answered: Make, stop: StopReason) -> None:
    with pytest.raises(ValueError, match=f"{stop} is outside every mean"):
        Rubric(RewardConfig()).score(question, play(answered("Oslo"), stop=stop))


def test_an_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"reward\.answer = 'cover-em' is unknown.*nearest is 'cover_em'"):
        Rubric(RewardConfig(answer="cover-em"))


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Builds a rubric around a user's function with the given result."""

    def rubric(result: str, **settings: bool) -> Rubric:
        name = f"rewards_of_{tmp_path.name}"
        code = f"from sleuth.records import Score\ndef judge(question, trajectory):\n    return {result}\n"
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return Rubric(RewardConfig(answer=f"import:{name}.judge", **settings))

    return rubric


def test_a_function_of_the_user_gives_the_total(question: Question, play: Play, answered: Make, judge: Judge) -> None:
    score = judge("len(trajectory.answer) / len(question.question)").score(question, play(answered("Oslo")))
    assert score.total == pytest.approx(4 / 40)
    assert score.parts["em"] == 1.0


def test_a_function_of_the_user_may_give_parts(question: Question, play: Play, answered: Make, judge: Judge) -> None:
    score = judge("Score(0.5, {'brevity': 0.25})").score(question, play(answered("Oslo")))
    assert (score.total, score.parts["brevity"], score.parts["format"]) == (0.5, 0.25, 1.0)


def test_a_function_of_the_user_goes_through_the_tiers(
    question: Question, play: Play, answered: Make, judge: Judge
) -> None:
    # 0.5 * 0.2 + 0.5 * 1.0
    assert judge("0.5", format=True).score(question, play(answered("?"))).total == pytest.approx(0.6)


def test_many_answers_do_not_soften_a_negative_reward(
    question: Question, play: Play, answered: Make, judge: Judge
) -> None:
    trajectory = play(answered("Oslo", "<answer>" * 11 + "Oslo</answer>"))
    assert judge("-1", many_answers=True).score(question, trajectory).total == -1.0


@pytest.mark.parametrize(
    ("result", "settings", "says"),
    [
        ("None", {}, r"gave None \(NoneType\); expected a number or a Score"),
        ("'0.5'", {}, r"gave '0.5' \(str\); expected a number or a Score"),
        ("__import__('numpy').ones(3)", {}, r"gave array\(.*\(ndarray\); expected a number or a Score"),
        ("__import__('numpy').ones(1)", {}, r"\(ndarray\); expected a number or a Score"),
        ("10 ** 400", {}, "expected a number or a Score"),
        ("Score('1.0', {})", {}, "gave '1.0' .str. for the total; expected a number"),
        ("Score(1.0, {'own': float('nan')})", {}, "gave nan for the part 'own'; expected a finite number"),
        ("Score(1.0, {'own': [1.0]})", {}, "gave .1.0. .list. for the part 'own'; expected a number"),
        ("Score(1.0, None)", {}, "gave a Score with parts None .NoneType.; expected a dict"),
        ("question.nothing", {}, "raised AttributeError: .*rewards_of_.*py:3"),
        ("float('nan')", {}, "gave nan; expected a finite number"),
        ("Score(float('inf'), {})", {}, "gave inf for the total; expected a finite number"),
        ("Score(1.0, {'em': 0.0})", {}, "reports 'em', a part of the rubric's own"),
        ("1.5", {"format": True}, r"gave 1\.5; expected 0 \(wrong\) to 1"),
    ],
)
def test_a_result_that_is_no_reward_is_refused(
    question: Question,
    play: Play,
    answered: Make,
    judge: Judge,
    result: str,
    settings: dict[str, bool],
    says: str,
) -> None:
    rubric, trajectory = judge(result, **settings), play(answered("Oslo"))
    with pytest.raises(FunctionFailed, match=says) as failed:
        rubric.score(question, trajectory)
    # In an episode it is the end of that episode alone.
    unusable, score = rubric.scored(replace(trajectory, question=question))
    assert score is None
    assert (unusable.stop, unusable.failure) == (StopReason.FUNCTION_FAILED, str(failed.value))
    assert unusable.turns == trajectory.turns


def test_a_number_of_any_kind_is_a_reward(question: Question, play: Play, answered: Make, judge: Judge) -> None:
    score = judge("Score(__import__('numpy').float32(0.5), {'own': True})").score(question, play(answered("Oslo")))
    assert (score.total, score.parts["own"]) == (0.5, 1.0)
    assert type(score.total) is float


def test_a_reward_that_cannot_be_called_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reward_of_one.py").write_text("def judge(trajectory):\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"'import:reward_of_one.judge' takes \(trajectory\) and cannot be called"):
        Rubric(RewardConfig(answer="import:reward_of_one.judge"))

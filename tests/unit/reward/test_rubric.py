"""Totals and parts of the rubric, tier by tier."""

import asyncio
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sleuth.config.reward import RewardConfig
from sleuth.errors import ConfigError, FunctionFailed
from sleuth.records import Malformed, Outcome, Question, Score, Segment, StopReason, ToolCall, Trajectory, Turn
from sleuth.reward.rubric import RESERVED_PARTS, Rubric

Make = Callable[..., Turn]
Play = Callable[..., Trajectory]
Judge = Callable[..., Rubric]

TIERED = RewardConfig(format=True, retrieval=0.1)


def test_every_part_is_reported(question: Question, play: Play, searched: Make, answered: Make) -> None:
    score = asyncio.run(Rubric(RewardConfig()).score(question, play(searched("Oslo is old."), answered("Oslo Norway"))))
    assert score.total == 0.0
    assert sorted(score.parts) == list(RESERVED_PARTS)
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
    score = asyncio.run(Rubric(RewardConfig(answer=answer)).score(question, play(answered("Oslo Norway"))))
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
    assert asyncio.run(Rubric(TIERED).score(question, trajectory)).total == total


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
    score = asyncio.run(Rubric(TIERED).score(question, trajectory))
    assert score.parts["retrieval_hit"] == hit
    assert score.total == pytest.approx(0.2 + 0.1 * hit)


def test_words_of_the_frame_are_no_passage(question: Question, play: Play, searched: Make, answered: Make) -> None:
    asked = replace(question, golden_answers=("Doc", "Oslo"))
    trajectory = play(replace(searched("Bergen.", "Oslo"), shown="Doc 1(Title: x) Bergen."), answered("Bergen"))
    assert asyncio.run(Rubric(TIERED).score(asked, trajectory)).parts["retrieval_hit"] == 0.0


def test_a_graded_answer_lies_between_the_tiers(question: Question, play: Play, answered: Make) -> None:
    rubric = Rubric(RewardConfig(answer="f1", format=True))
    # F1 of "Oslo Norway" is 2/3: 1/3 * 0.2 + 2/3 * 1.0
    assert asyncio.run(rubric.score(question, play(answered("Oslo Norway")))).total == pytest.approx(2.2 / 3)


@pytest.mark.parametrize("config", [RewardConfig(), RewardConfig(answer="cover_em"), TIERED])
def test_no_answer_scores_nothing_though_the_gold_stands_everywhere(
    question: Question, play: Play, searched: Make, config: RewardConfig
) -> None:
    mumbled = Turn("Oslo, surely Oslo", Malformed("no tag"), Outcome.CORRECTED, 5)
    trajectory = play(searched("<answer>Oslo</answer>"), mumbled, stop=StopReason.OUT_OF_TURNS)
    score = asyncio.run(Rubric(config).score(question, trajectory))
    assert (score.total, score.parts["em"], score.parts["f1"], score.parts["cover_em"]) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("tags", "total"), [(10, 1.0), (11, 0.25)])
def test_more_than_ten_answer_tags_divide_by_four(
    question: Question, play: Play, answered: Make, tags: int, total: float
) -> None:
    trajectory = play(answered("Oslo", "<answer>" * tags + "Oslo</answer>"))
    assert asyncio.run(Rubric(RewardConfig(many_answers=True)).score(question, trajectory)).total == total
    assert asyncio.run(Rubric(RewardConfig()).score(question, trajectory)).total == 1.0


@pytest.mark.parametrize("stop", [StopReason.SEARCH_UNAVAILABLE, StopReason.ENGINE_FAILED])
def test_an_unusable_trajectory_has_no_score(question: Question, play: Play, answered: Make, stop: StopReason) -> None:
    with pytest.raises(ValueError, match=f"{stop}"):
        asyncio.run(Rubric(RewardConfig()).score(question, play(answered("Oslo"), stop=stop)))


def test_an_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"reward\.answer = 'cover-em' is unknown.*'cover_em'"):
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
    score = asyncio.run(
        judge("len(trajectory.answer) / len(question.question)").score(question, play(answered("Oslo")))
    )
    assert score.total == pytest.approx(4 / 40)
    assert score.parts["em"] == 1.0


def test_a_function_of_the_user_may_give_parts(question: Question, play: Play, answered: Make, judge: Judge) -> None:
    score = asyncio.run(judge("Score(0.5, {'brevity': 0.25})").score(question, play(answered("Oslo"))))
    assert (score.total, score.parts["brevity"], score.parts["format"]) == (0.5, 0.25, 1.0)


def test_a_function_of_the_user_goes_through_the_tiers(
    question: Question, play: Play, answered: Make, judge: Judge
) -> None:
    # 0.5 * 0.2 + 0.5 * 1.0
    assert asyncio.run(judge("0.5", format=True).score(question, play(answered("?")))).total == pytest.approx(0.6)


def test_many_answers_do_not_soften_a_negative_reward(
    question: Question, play: Play, answered: Make, judge: Judge
) -> None:
    trajectory = play(answered("Oslo", "<answer>" * 11 + "Oslo</answer>"))
    assert asyncio.run(judge("-1", many_answers=True).score(question, trajectory)).total == -1.0


@pytest.mark.parametrize(
    ("result", "settings", "says"),
    [
        ("None", {}, r"returned None \(NoneType\); expected a number or a Score"),
        ("'0.5'", {}, r"returned '0.5' \(str\); expected a number or a Score"),
        ("__import__('numpy').ones(3)", {}, r"returned array\(.*\(ndarray\); expected a number or a Score"),
        ("__import__('numpy').ones(1)", {}, r"\(ndarray\); expected a number or a Score"),
        ("10 ** 400", {}, "expected a number or a Score"),
        ("Score('1.0', {})", {}, "returned '1.0' .str. for the total; expected a number"),
        ("Score(1.0, {'own': float('nan')})", {}, "returned nan for the part 'own'; expected a finite number"),
        ("Score(1.0, {'own': [1.0]})", {}, "returned .1.0. .list. for the part 'own'; expected a number"),
        ("Score(1.0, None)", {}, "returned a Score with parts None .NoneType.; expected a dict"),
        ("question.nothing", {}, "raised AttributeError: .*rewards_of_.*py:3"),
        ("float('nan')", {}, "returned nan; expected a finite number"),
        ("Score(float('inf'), {})", {}, "returned inf for the total; expected a finite number"),
        ("Score(1.0, {'em': 0.0})", {}, "'em'"),
        ("1.5", {"format": True}, r"returned 1\.5; expected 0 \(wrong\) to 1"),
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
        asyncio.run(rubric.score(question, trajectory))
    # In an episode it is the end of that episode alone.
    unusable, score = asyncio.run(rubric.score_all([replace(trajectory, question=question)]))[0]
    assert score is None
    assert (unusable.stop, unusable.failure) == (StopReason.FUNCTION_FAILED, str(failed.value))
    assert unusable.turns == trajectory.turns


def test_a_number_of_any_kind_is_a_reward(question: Question, play: Play, answered: Make, judge: Judge) -> None:
    score = asyncio.run(
        judge("Score(__import__('numpy').float32(0.5), {'own': True})").score(question, play(answered("Oslo")))
    )
    assert (score.total, score.parts["own"]) == (0.5, 1.0)
    assert type(score.total) is float


def test_a_reward_that_cannot_be_called_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reward_of_one.py").write_text("def judge(trajectory):\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"'import:reward_of_one.judge' takes \(trajectory\) and cannot be called"):
        Rubric(RewardConfig(answer="import:reward_of_one.judge"))


@pytest.mark.parametrize(
    ("said", "format_valid", "total"), [("Oslo", True, 1.0), ("Rome", True, 0.25), ("Rome", False, 0.0)]
)
def test_a_numeric_format_score_rewards_wrong_answers_in_valid_format(
    question: Question, play: Play, answered: Make, said: str, format_valid: bool, total: float
) -> None:
    turn = answered(said) if format_valid else replace(answered(said), formed=False)
    score = asyncio.run(Rubric(RewardConfig(format=0.25)).score(question, play(turn)))
    assert score.total == total


ASYNC = """
import asyncio
from sleuth.records import Score
running = most = calls = 0
starts = []
async def judge(question, trajectory):
    global running, most, calls
    starts.append(asyncio.get_running_loop().time())
    running, calls = running + 1, calls + 1
    most = max(most, running)
    await asyncio.sleep(0.01)
    running -= 1
    if trajectory.sample == 3:
        raise ConnectionError("judge is down")
    if trajectory.sample == 4:
        await asyncio.sleep(60)
    return Score(0.5, {"style": trajectory.sample / 8}, turns=(0.125,) * len(trajectory.turns))
"""


@pytest.fixture
def async_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"async_rewards_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(ASYNC)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_async_rewards_run_concurrently_within_their_limits(
    question: Question, play: Play, answered: Make, async_judge: str
) -> None:
    rubric = Rubric(RewardConfig(answer=f"import:{async_judge}.judge", concurrency=4, deadline=0.5))
    trajectory = replace(play(answered("Oslo")), question=question)
    scored = asyncio.run(rubric.score_all([replace(trajectory, sample=place) for place in range(8)]))
    module = sys.modules[async_judge]
    assert (module.calls, module.most) == (8, 4)
    assert [each.sample for each, _ in scored] == list(range(8))
    failed = {each.sample: str(each.failure) for each, score in scored if score is None}
    assert failed.keys() == {3, 4}
    assert "judge is down" in failed[3]
    assert "0.5 s" in failed[4]
    first = scored[1][1]
    assert first is not None
    assert (first.total, first.parts["style"], first.turns) == (0.5, 0.125, (0.125,))
    assert first.episode_return == 0.625


def test_async_rewards_keep_their_rate(question: Question, play: Play, answered: Make, async_judge: str) -> None:
    rubric = Rubric(RewardConfig(answer=f"import:{async_judge}.judge", rate=50.0))
    trajectory = replace(play(answered("Oslo")), question=question)
    asyncio.run(rubric.score_all([replace(trajectory, sample=8 + place) for place in range(6)]))
    starts = sorted(sys.modules[async_judge].starts)
    assert starts[-1] - starts[0] >= (5 - 2.5) / 50 * 0.9  # the bucket holds 2.5


@pytest.mark.parametrize("turns", ["(1.0, 2.0)", "None", "'1'", "(float('nan'),)", "('a',)"])
def test_turn_rewards_must_be_one_number_per_turn(
    question: Question, play: Play, answered: Make, judge: Judge, turns: str
) -> None:
    with pytest.raises(FunctionFailed, match="turn"):
        asyncio.run(judge(f"Score(1.0, {{}}, {turns})").score(question, play(answered("Oslo"))))


def test_reward_of_the_agent_replaces_the_configured_one(question: Question, play: Play, answered: Make) -> None:
    """As it is, without tiers of format; the usual parts are still measured."""
    own = replace(play(answered("Oslo")), reward=Score(-2.5, {"style": 0.5}, (0.25,)))
    score = asyncio.run(Rubric(RewardConfig(answer="f1", format=True, many_answers=True)).score(question, own))
    assert (score.total, score.turns, score.episode_return) == (-2.5, (0.25,), -2.25)
    assert (score.parts["em"], score.parts["style"]) == (1.0, 0.5)


@pytest.mark.parametrize(
    "reward", [Score(math.nan), Score(1.0, {"em": 1.0}), Score(1.0, {"x": math.inf}), Score(1.0, {}, (0.5, 0.5))]
)
def test_bad_reward_of_the_agent_makes_the_trajectory_unusable(
    play: Play, answered: Make, question: Question, reward: Score
) -> None:
    own = replace(play(answered("Oslo")), question=question, reward=reward)
    found, score = asyncio.run(Rubric(RewardConfig()).score_one(own))
    assert (score, found.stop) == (None, StopReason.FUNCTION_FAILED)
    assert "the agent" in str(found.failure)


def test_turn_rewards_fit_the_calls_of_several_segments(question: Question, play: Play, answered: Make) -> None:
    """Two calls in a row are one run of sampled tokens, and a turn of another model has none."""
    turns = (answered("Rome"), answered("Bergen"), replace(answered("Oslo"), segment=None))
    calls = Segment((1, 2, 3), (False, True, True), (-0.5, -0.5), (0, 0), calls=((0, 1), (1, 1)))
    own = replace(play(*turns), segments=(calls,), reward=Score(1.0, {}, (0.1, 0.2, 0.3)))
    assert asyncio.run(Rubric(RewardConfig()).score(question, own)).turns == (0.1, 0.2, 0.3)
    without = replace(own, segments=(replace(calls, calls=()),))
    with pytest.raises(FunctionFailed, match="3 turns and 1 sampled"):
        asyncio.run(Rubric(RewardConfig()).score(question, without))


UNKNOWN = "I don't know"


def reward(settings: RewardConfig, question: Question, trajectory: Trajectory) -> float:
    return asyncio.run(Rubric(settings).score(question, replace(trajectory, question=question))).total


@pytest.mark.parametrize(
    ("answerable", "answer", "abstain", "total"),
    [
        (None, UNKNOWN, None, 0.0),
        (False, UNKNOWN, None, 0.0),  # off: as before
        (False, "Oslo", None, 1.0),
        (None, UNKNOWN, 0.3, 0.3),
        (True, UNKNOWN, 0.3, 0.3),
        (True, UNKNOWN, 0.0, 0.0),
        (True, "Oslo", 0.3, 1.0),
        (True, "Bergen", 0.3, 0.0),
        (False, UNKNOWN, 0.3, 1.0),
        (False, UNKNOWN, 0.0, 1.0),
        (False, "Bergen", 0.3, 0.0),
        (False, "Oslo", 0.3, 0.0),  # a wrong answer, whatever it equals
    ],
)
def test_abstaining(
    question: Question, play: Play, answered: Make, answerable: bool | None, answer: str, abstain: float | None,
    total: float,
) -> None:  # fmt: skip
    asked = replace(question, answerable=answerable)
    assert reward(RewardConfig(abstain=abstain), asked, play(answered(answer))) == total


def test_no_answer_to_an_unanswerable_question(question: Question, play: Play, searched: Make) -> None:
    asked = replace(question, golden_answers=(), answerable=False)
    assert reward(RewardConfig(abstain=0.5), asked, play(searched("x"), stop=StopReason.OUT_OF_TURNS)) == 0.0


def test_format_counts_for_abstentions_too(question: Question, play: Play, answered: Make) -> None:
    asked, settings = replace(question, answerable=False), RewardConfig(abstain=0.5, format=True)
    assert reward(settings, asked, play(answered(UNKNOWN))) == 1.0
    assert reward(settings, asked, play(answered(UNKNOWN, formed=False))) == 0.8
    assert reward(settings, asked, play(answered("Bergen"))) == pytest.approx(0.2)


def test_the_parts_stay_the_same(question: Question, play: Play, answered: Make) -> None:
    plain, abstaining = (
        asyncio.run(Rubric(RewardConfig(abstain=each)).score(question, play(answered(UNKNOWN)))) for each in (None, 0.4)
    )
    assert plain.parts == abstaining.parts
    assert plain.parts["em"] == 0.0


@pytest.mark.parametrize("value", [-0.1, 1.1, "often"])
def test_abstain_is_a_fraction(value: object) -> None:
    with pytest.raises(ValueError, match="abstain"):
        RewardConfig(abstain=value)  # type: ignore[arg-type]


def found(searched: Make, *ids: str) -> Turn:
    """A search that returned the passages with these ids."""
    turn = searched(*(f"text of {each}" for each in ids))
    named = zip(turn.hits, ids, strict=True)
    return replace(turn, hits=tuple(replace(hit, passage=replace(hit.passage, id=each)) for hit, each in named))


@pytest.mark.parametrize(
    ("searches", "useless"),
    [
        ([], 0),
        ([("a", "b"), ("b", "c")], 0),
        ([("a", "b"), ("b",), ("b", "a")], 2),
        ([()], 1),
        ([(), ("a",), (), ("a", "c"), ("c",)], 3),
    ],
)
def test_a_search_without_a_new_passage_costs(
    question: Question, play: Play, searched: Make, answered: Make, searches: list[tuple[str, ...]], useless: int
) -> None:
    trajectory = play(*(found(searched, *ids) for ids in searches), answered("Oslo"))
    score = asyncio.run(Rubric(RewardConfig(useless_search=0.2, format=True)).score(question, trajectory))
    assert score.parts["useless_searches"] == useless
    assert score.total == pytest.approx(1.0 - 0.2 * useless)


def test_only_searches_that_were_carried_out_can_be_useless(
    question: Question, play: Play, searched: Make, answered: Make
) -> None:
    """A refused search costs nothing, and an opened page or a tool is none."""
    refused = replace(found(searched), outcome=Outcome.REFUSED)
    opened = replace(found(searched), action=ToolCall.access("http://a"))
    trajectory = play(refused, opened, answered("Bergen"))
    score = asyncio.run(Rubric(RewardConfig(useless_search=0.2)).score(question, trajectory))
    assert (score.total, score.parts["useless_searches"]) == (0.0, 0.0)


def test_the_reward_of_the_agent_itself_is_not_reduced(
    question: Question, play: Play, searched: Make, answered: Make
) -> None:
    own = replace(play(found(searched), answered("Oslo")), reward=Score(0.5))
    score = asyncio.run(Rubric(RewardConfig(useless_search=0.2)).score(question, own))
    assert (score.total, score.parts["useless_searches"]) == (0.5, 1.0)

"""Evaluations: what is counted, what is scored, what is left out."""

import asyncio
import json
from collections.abc import Callable, Sequence

import pytest

from sleuth.agent.episode import Agent
from sleuth.agent.tags import Tags
from sleuth.agent.tools import SearchTool
from sleuth.config.agent import AgentConfig
from sleuth.config.reward import RewardConfig
from sleuth.engines.base import Completion, OnTokens, Sampling, Session
from sleuth.engines.scripted import ScriptedEngine
from sleuth.evaluate.intervals import estimate
from sleuth.evaluate.suite import Evaluation, evaluate
from sleuth.model.tokens import Tokens
from sleuth.records import Question, StopReason, Trajectory
from sleuth.retrieval.retriever import Retriever
from sleuth.reward.rubric import Rubric

Make = Callable[..., Evaluation]


def ask(agent: Agent, *texts: str, concurrent: int = 3) -> tuple[Evaluation, list[Trajectory]]:
    questions = [Question(f"q{number}", text, ("oslo",), "test") for number, text in enumerate(texts)]
    heard: list[Trajectory] = []
    rubric = Rubric(RewardConfig())
    return asyncio.run(evaluate(agent, questions, rubric, concurrent=concurrent, step=7, done=heard.append)), heard


def test_every_question_is_asked_once_in_order(agent: Agent) -> None:
    texts = ["oslo", "bergen", "search oslo", "oslo", "rome", "search rome", "oslo"]
    evaluation, heard = ask(agent, *texts)
    assert [each.question.question for each in evaluation.asked] == texts
    assert [each.trajectory.group for each in evaluation.asked] == list(range(7))
    assert {each.trajectory.step for each in evaluation.asked} == {7}
    assert len(heard) == 7
    assert evaluation.em.value == 4 / 7
    assert evaluation.searches.value == 2 / 7


def test_searches_are_counted_and_have_the_interval_of_a_mean(agent: Agent) -> None:
    """Though no question is searched for twice here: Wilson's interval is that of a proportion."""
    evaluation, _ = ask(agent, "oslo", "bergen", "search oslo", "rome")
    searches = [score.parts["searches"] for score in evaluation.scores()]
    assert set(searches) == {0.0, 1.0}
    assert evaluation.searches == estimate(searches, shares=False) != estimate(searches)
    low, high = (evaluation.metrics("evaluate")[f"evaluate/searches_{end}"] for end in ("low", "high"))
    assert (low, high) == (evaluation.searches.low, evaluation.searches.high)


def test_failures_are_counted_and_never_scored(agent: Agent) -> None:
    evaluation, _ = ask(agent, "oslo", "fail", "search book", "rome")
    assert [each.score is None for each in evaluation.asked] == [False, True, True, False]
    assert [each.trajectory.stop for each in evaluation.asked[1:3]] == [
        StopReason.ENGINE_FAILED,
        StopReason.SEARCH_UNAVAILABLE,
    ]
    assert (evaluation.unusable, evaluation.em.value, evaluation.em.count) == (2, 0.5, 2)


def test_asking_is_greedy_unless_told_otherwise(tokens: Tokens, shelf: Retriever) -> None:
    asked: list[float] = []

    class Listening(ScriptedEngine):
        async def generate(
            self,
            ids: Sequence[int],
            sampling: Sampling,
            session: Session | None = None,
            on_tokens: OnTokens | None = None,
        ) -> Completion:
            asked.append(sampling.temperature)
            return await super().generate(ids, sampling, session, on_tokens)

    line = tokens.encode("<answer>oslo</answer>")
    agent = Agent(Listening.playing(line, line), tokens, Tags(), SearchTool(shelf, 3), AgentConfig(prompt="brief"))
    ask(agent, "a", "b")
    assert asked == [0.0, 0.0]


def test_means(evaluation: Make) -> None:
    found = evaluation(("one_hop", 1, "oslo", 1), ("one_hop", 1, "oslo fjord", 2), ("one_hop", 1, "rome", 0))
    assert (found.em.value, found.searches.value) == pytest.approx((1 / 3, 1.0))
    assert found.f1.value == pytest.approx((1 + 2 / 3) / 3)
    assert found.f1.low < found.f1.value < found.f1.high


def test_kinds_and_types(evaluation: Make) -> None:
    found = evaluation(
        ("yes_no", 2, "oslo", 1), ("two_hop", 2, "rome", 2), (None, None, "oslo", 0), ("two_hop", 2, None, 1)
    )
    assert {name: (len(part.asked), part.unusable) for name, part in found.by_hops().items()} == {
        "2 hops": (2, 1),
        "yes/no": (1, 0),
        "world": (1, 0),
    }
    assert list(found.by(lambda question: question.id)) == ["q0", "q1", "q2", "q3"]


def test_metrics_are_flat(evaluation: Make) -> None:
    found = evaluation(("yes_no", 2, "oslo", 1), ("two_hop", 2, "rome", 2), ("one_hop", 1, None, 0))
    metrics = found.metrics("evaluate")
    assert {
        name: metrics[f"evaluate/{name}"] for name in ("questions", "unusable", "em", "em_yes_no", "em_2_hops")
    } == {
        "questions": 3.0,
        "unusable": 1.0,
        "em": 0.5,
        "em_yes_no": 1.0,
        "em_2_hops": 0.0,
    }
    assert (metrics["evaluate/em_low"], metrics["evaluate/em_high"]) == (found.em.low, found.em.high)
    assert metrics["evaluate/searches_2_hops"] == 2.0
    assert "evaluate/em_1_hop" not in metrics


def test_json(evaluation: Make) -> None:
    found = json.loads(json.dumps(evaluation(("one_hop", 1, "oslo", 1), ("one_hop", 1, "rome", 1)).as_json()))
    assert found["em"] == {
        "value": 0.5,
        "low": pytest.approx(0.0945, abs=1e-4),
        "high": pytest.approx(0.9055, abs=1e-4),
        "count": 2,
    }
    assert (found["questions"], found["unusable"], found["by_hops"]["1 hop"]["questions"]) == (2, 0, 2)


def test_where_all_failed_there_is_no_mean(evaluation: Make) -> None:
    found = evaluation(("one_hop", 1, None, 0))
    with pytest.raises(ValueError, match="at least one"):
        _ = found.em
    assert found.metrics("evaluate") == {"evaluate/questions": 1.0, "evaluate/unusable": 1.0}
    assert found.as_json() == {"questions": 1, "unusable": 1, "by_hops": {"1 hop": {"questions": 1, "unusable": 1}}}

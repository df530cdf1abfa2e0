"""The evaluation runner: in memory, into a folder, resumed, and stopped by the circuit breaker."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sleuth.agent.episode import Agent
from sleuth.agent.tags import Tags
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.config.reward import RewardConfig
from sleuth.engines.base import Completion, OnTokens, Sampling, Session
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import InputError
from sleuth.evaluate.folder import TIME, EvaluationFolder
from sleuth.evaluate.report import load_results, write_report
from sleuth.evaluate.results import Evaluation, ScoredTrajectory, values_of
from sleuth.evaluate.runner import MAX_FAILURES, EvaluationClock, evaluate, evaluate_folder
from sleuth.evaluate.statistics import estimate
from sleuth.model.tokens import Tokens
from sleuth.records import Question, StopReason
from sleuth.retrieval.retriever import Retriever
from sleuth.reward.rubric import Rubric

MANIFEST: dict[str, Any] = {"title": "Test", "stamp": {"model": {"sha256": "abc"}}, "sample": None, "notes": []}
TEXTS = ("oslo", "search oslo", "rome", "search rome", "oslo in norway", "search")


def new_folder(path: Path, *texts: str) -> EvaluationFolder:
    questions = [Question(str(n // 2), text, ("oslo",), f"set {n % 2}") for n, text in enumerate(texts)]
    return EvaluationFolder.create_or_resume(path, MANIFEST, questions)


def ask(agent: Agent, *texts: str, concurrent: int = 3) -> tuple[Evaluation, list[ScoredTrajectory]]:
    questions = [Question(f"q{number}", text, ("oslo",), "test") for number, text in enumerate(texts)]
    episodes: list[ScoredTrajectory] = []
    running = evaluate(
        agent, questions, Rubric(RewardConfig()), concurrent=concurrent, step=7, on_result=episodes.append
    )
    return asyncio.run(running), episodes


def test_every_question_is_asked_once_in_order(agent: Agent) -> None:
    texts = ["oslo", "bergen", "search oslo", "oslo", "rome", "search rome", "oslo"]
    evaluation, episodes = ask(agent, *texts)
    assert [each.question.question for each in evaluation.results] == texts
    assert [each.group for each in evaluation.trajectories] == list(range(7))
    assert {each.step for each in evaluation.trajectories} == {7}
    assert len(episodes) == 7
    assert evaluation.em.value == 4 / 7
    assert evaluation.mean("searches").value == 2 / 7


def test_searches_have_the_interval_of_a_count(agent: Agent) -> None:
    """Even if no question has two searches: a Wilson interval would be wrong."""
    evaluation, _ = ask(agent, "oslo", "bergen", "search oslo", "rome")
    searches = values_of(evaluation.results, "searches")
    assert set(searches) == {0.0, 1.0}
    mean = evaluation.mean("searches")
    assert mean == estimate(searches, proportion=False) != estimate(searches)
    low, high = (evaluation.metrics("evaluate")[f"evaluate/searches_{end}"] for end in ("low", "high"))
    assert (low, high) == (mean.low, mean.high)


def test_failures_are_counted_and_never_scored(agent: Agent) -> None:
    evaluation, _ = ask(agent, "oslo", "fail", "search book", "rome")
    assert [not each.usable for each in evaluation.results] == [False, True, True, False]
    assert [each.stop for each in evaluation.trajectories[1:3]] == [
        StopReason.ENGINE_FAILED,
        StopReason.SEARCH_UNAVAILABLE,
    ]
    assert (evaluation.unusable, evaluation.em.value, evaluation.em.count) == (2, 0.5, 2)


def test_default_is_greedy(tokens: Tokens, shelf: Retriever) -> None:
    temperatures: list[float] = []

    class Recording(ScriptedEngine):
        async def generate(
            self,
            ids: Sequence[int],
            sampling: Sampling,
            session: Session | None = None,
            on_tokens: OnTokens | None = None,
        ) -> Completion:
            temperatures.append(sampling.temperature)
            return await super().generate(ids, sampling, session, on_tokens)

    line = tokens.encode("<answer>oslo</answer>")
    agent = Agent(Recording.playing(line, line), tokens, Tags(), Toolbox(shelf, 3), AgentConfig(prompt="brief"))
    ask(agent, "a", "b")
    assert temperatures == [0.0, 0.0]


def test_time_of_an_interrupted_session_counts(tmp_path: Path, agent: Agent) -> None:
    folder = new_folder(tmp_path / "e", *TEXTS)

    def broken(_: object) -> None:
        raise OSError("terminal closed")

    folder.write(TIME, '{"seconds": 100.0}')
    with pytest.raises(OSError, match="terminal closed"):
        asyncio.run(evaluate_folder(agent, folder, concurrent=1, on_result=broken))
    first = folder.seconds()
    assert first is not None
    assert first > 100.0
    asyncio.run(evaluate_folder(agent, folder))
    assert write_report(folder, load_results(folder))["wall_seconds"] > first


def test_time_is_saved_periodically(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "e", *TEXTS)
    clock = EvaluationClock(folder)
    clock.save()
    assert not (folder.path / TIME).exists()
    clock.started -= 30.0
    clock.save()
    assert 30.0 <= (folder.seconds() or 0.0) < 40.0


@pytest.mark.parametrize(("first", "stopped"), [("search book", True), ("search oslo", False)])
def test_circuit_breaker_on_failing_searches(tmp_path: Path, agent: Agent, first: str, stopped: bool) -> None:
    folder = new_folder(tmp_path / "e", first, "oslo", *["search book"] * (MAX_FAILURES + 20))
    if stopped:
        with pytest.raises(InputError, match=rf"{MAX_FAILURES} .*'book'"):
            asyncio.run(evaluate_folder(agent, folder, concurrent=2))
    else:
        asyncio.run(evaluate_folder(agent, folder, concurrent=2))
    locations = folder.locations()
    assert (len(locations) < MAX_FAILURES + 10) is stopped
    assert locations[1].usable


def test_circuit_breaker_on_failing_engine(tmp_path: Path, agent: Agent) -> None:
    folder = new_folder(tmp_path / "e", "oslo", *["fail"] * (MAX_FAILURES + 20))
    with pytest.raises(InputError, match=rf"{MAX_FAILURES} .*out of luck"):
        asyncio.run(evaluate_folder(agent, folder, concurrent=2))
    assert folder.locations()[0].usable


def test_positions_select_questions(agent: Agent) -> None:
    questions = [Question(str(n), text, ("oslo",), "test") for n, text in enumerate(TEXTS)]
    found = asyncio.run(evaluate(agent, questions, Rubric(RewardConfig()), positions=range(1, 6, 2)))
    assert [each.question.id for each in found.results] == ["1", "3", "5"]
    assert [each.group for each in found.trajectories] == [1, 3, 5]

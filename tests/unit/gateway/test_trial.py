"""The report on a trial: counts, rewards, grouped failures, and the hints that follow from them."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import httpx
import pytest

from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox
from sleuth.config import recipe
from sleuth.config.agent import AgentConfig
from sleuth.config.reward import RewardConfig
from sleuth.config.tree import Config
from sleuth.engines.scripted import ScriptedEngine
from sleuth.gateway.endpoint import Endpoint
from sleuth.gateway.launcher import FunctionLauncher
from sleuth.gateway.outside import OutsideAgent, OutsideCounts
from sleuth.gateway.rollout import CallTimes
from sleuth.gateway.server import Gateway
from sleuth.gateway.trial import ScoredAttempt, TrialReport, group_failures, report_trial, run_trial
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, Outcome, Question, Score, Segment, StopReason, ToolCall, Trajectory, Turn
from sleuth.reward.rubric import Rubric, score_by_em

QUESTION = Question("q", "Where?", ("Oslo",), "test")
REPLY = Turn("Oslo", Answer("Oslo"), Outcome.ANSWERED, 2)
SEGMENT = Segment((1, 2, 3), (False, True, True), (-0.1, -0.2), (0, 0))
RAISED = "'import:mine.run' raised ValueError: question {} (x) is bad (/agents/mine.py:{})"


def trajectory(**changes: Any) -> Trajectory:
    """An attempt that answers with one call, unless changed."""
    return replace(Trajectory(QUESTION, 0, 0, 1, (SEGMENT,), (REPLY,), StopReason.ANSWERED), **changes)


def failed(reason: str | None, stop: StopReason = StopReason.FUNCTION_FAILED) -> Trajectory:
    return trajectory(segments=(), turns=(), stop=stop, failure=reason)


def report(*trajectories: Trajectory, **settings: Any) -> TrialReport:
    attempts = [
        ScoredAttempt(each, each.reward or score_by_em(each), float(second))
        for second, each in enumerate(trajectories, 1)
    ]
    settings = {"turn_tokens": 50, "context_tokens": 100, "turns": 4, **settings}
    lines = recipe.overrides({"agent": {"run": "import:mine.run", **settings}})
    config = recipe.load("quickstart", lines)
    counts = OutsideCounts(calls=sum(len(each.turns) for each in trajectories))
    return report_trial(attempts, counts, CallTimes(parse=0.5, wait=3.0, generate=2.0, encode=0.5), config, 9.0)


def test_figures_of_the_report() -> None:
    wrong = trajectory(turns=(replace(REPLY, action=Answer("Rome")),))
    own = trajectory(reward=Score(0.5, {}, (0.25,)))
    found = report(trajectory(), wrong, own, failed("it broke"))
    assert found.rewards is not None
    assert (found.rewards.count, found.rewards.by_rubric, found.rewards.by_agent) == (3, 2, 1)
    assert (found.rewards.low, found.rewards.high, found.rewards.em) == (0.0, 1.0, 0.5)
    assert found.rewards.mean == pytest.approx(1.75 / 3)
    assert found.rewards.spread == pytest.approx(0.5204, abs=1e-4)
    assert found.stops == {"answered": 3, "function_failed": 1}
    assert (found.attempts, found.failed, found.longest_context, found.context_tokens) == (4, 1, 3, 100)
    seconds = found.seconds
    assert (seconds.total, seconds.attempt_median, seconds.attempt_max) == (9.0, 2.5, 4.0)
    assert seconds.call == pytest.approx(4 / 3)
    assert seconds.generation == pytest.approx(2 / 3)
    assert json.loads(json.dumps(asdict(found), allow_nan=False))["rewards"]["em"] == 0.5


def test_report_without_rewards_or_calls_has_no_numbers_for_them() -> None:
    found = report(failed("it broke"))
    assert (found.rewards, found.seconds.call, found.seconds.generation) == (None, None, None)
    assert "rewards      none" in found.lines()
    single = report(trajectory())
    assert single.rewards is not None
    assert single.rewards.spread is None


def test_failures_are_grouped_by_exception_and_line_or_by_text_without_numbers() -> None:
    reasons = [
        RAISED.format(1, 12),
        "no reply within 30 s",
        RAISED.format(2, 12),
        RAISED.format(1, 40),
        "no reply within 20 s",
        RAISED.format(3, 12),
        None,
    ]
    found = group_failures([failed(reason) for reason in reasons])
    assert [(each.count, each.reason, each.place) for each in found] == [
        (3, RAISED.format(1, 12), "/agents/mine.py:12"),
        (2, "no reply within 30 s", None),
        (1, RAISED.format(1, 40), "/agents/mine.py:40"),
        (1, "function_failed", None),
    ]


FORKED = trajectory(segments=(SEGMENT, SEGMENT), turns=(REPLY, replace(REPLY, segment=1)))
TWO_ROLES = replace(FORKED, segments=(SEGMENT, replace(SEGMENT, role="critic")))
CALLING = trajectory(turns=(replace(REPLY, action=ToolCall("search", {}), outcome=Outcome.RETURNED),))
WRONG = trajectory(turns=(replace(REPLY, action=Answer("Rome")),))


@pytest.mark.parametrize(
    ("trajectories", "hints"),
    [
        ([trajectory(), WRONG], []),
        ([trajectory(), WRONG, failed("raised", StopReason.ENGINE_FAILED)], ["1 of 3 attempts failed"]),
        ([trajectory(), WRONG, failed("raised")], ["1 of 3 attempts got no reply", "1 of 3 attempts failed"]),
        ([FORKED, WRONG], []),
        ([FORKED, trajectory(reward=Score(0.0), segments=(SEGMENT, SEGMENT))], ["every attempt forks"]),
        ([TWO_ROLES, replace(TWO_ROLES, reward=Score(0.0))], []),
        ([WRONG, WRONG], ["all rewards are 0"]),
        ([WRONG], []),
        ([trajectory(), CALLING], ["1 of 2 attempts ended without an answer"]),
        ([trajectory(), replace(CALLING, reward=Score(0.0))], []),
        ([trajectory(segments=(replace(SEGMENT, ids=(1,) * 90),)), WRONG], ["90 of 100 tokens"]),
        ([trajectory(), replace(CALLING, stop=StopReason.OUT_OF_TOKENS)], ["1 of 2 attempts ran out of them"]),
        ([trajectory(), replace(CALLING, stop=StopReason.OUT_OF_TURNS)], ["agent.turns = 4"]),
        ([trajectory(turns=(replace(REPLY, tokens=50),)), WRONG], ["1 of 2 replies have agent.turn_tokens = 50"]),
        (
            [replace(each, segments=(replace(SEGMENT, sampled=(False,) * 3),)) for each in (trajectory(), WRONG)],
            ["temperature 0"],
        ),
    ],
)
def test_hints(trajectories: Sequence[Trajectory], hints: Sequence[str]) -> None:
    found = report(*trajectories).hints
    assert len(found) == len(hints)
    for hint, part in zip(found, hints, strict=True):
        assert part in hint


def once_or_never(task: Task, llm: Endpoint) -> float | None:
    """The agent under test: fails at every third question, and rewards every other attempt itself."""
    if task.group % 3 == 2:
        raise ValueError(f"question {task.group}")
    body = {"model": llm.model, "messages": [{"role": "user", "content": "Where?"}]}
    headers = {"Authorization": f"Bearer {llm.api_key}"}
    httpx.post(f"{llm.base_url}/chat/completions", json=body, headers=headers, timeout=10).raise_for_status()
    return 0.25 if task.group % 2 else None


def test_trial_through_the_gateway(chat_tokens: Tokens, tools: Toolbox) -> None:
    spec = f"import:{__name__}.once_or_never"
    config = Config.model_validate({"world": {}, "agent": {"run": spec}})
    engine = ScriptedEngine(lambda _: chat_tokens.encode_trusted("Oslo<|im_end|>"))
    done: list[int] = []
    with OutsideAgent(
        engine, chat_tokens, tools, AgentConfig(run=spec), Gateway(tools=tools), FunctionLauncher(spec)
    ) as agent:
        trial = run_trial(
            agent, [Task(QUESTION, group) for group in range(6)], Rubric(RewardConfig()), 3, lambda: done.append(1)
        )
        attempts = asyncio.run(trial)
    found = report_trial(attempts, agent.counts, agent.times, config, 1.0)
    assert [each.trajectory.group for each in attempts] == list(range(6))
    assert len(done) == 6
    assert [each.score and each.score.total for each in attempts] == [1.0, 0.25, None, 0.25, 1.0, None]
    assert (found.calls, found.segments, found.forks, found.failed) == (4, 4, 0, 2)
    ((count, place),) = [(each.count, each.place) for each in found.failures]
    assert count == 2
    assert str(place).rpartition(":")[0] == __file__
    assert found.seconds.call is not None
    assert found.seconds.call >= (found.seconds.generation or 0.0) > 0.0

"""Outside agents: how an attempt ends, which rewards count, and what makes it unusable."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from threading import Event
from typing import Any

import httpx
import numpy as np
import pytest

from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import EngineFailure
from sleuth.gateway.endpoint import Endpoint
from sleuth.gateway.launcher import AttemptLost, FunctionLauncher
from sleuth.gateway.outside import OutsideAgent
from sleuth.gateway.server import Gateway
from sleuth.model.tokens import Tokens
from sleuth.records import Question, Score, StopReason, Trajectory

Function = Callable[[Task, Endpoint], Any]
Attempt = Callable[..., Trajectory]
QUESTION = Question("q", "Where?", ("Oslo",), "test")
chosen: list[Function] = []


def agent(task: Task, llm: Endpoint) -> Any:
    """The function under test."""
    return chosen[-1](task, llm)


def ask(llm: Endpoint, text: str = "Where?", **options: Any) -> httpx.Response:
    body = {"model": llm.model, "messages": [{"role": "user", "content": text}], **options}
    headers = {"Authorization": f"Bearer {llm.api_key}"}
    return httpx.post(f"{llm.base_url}/chat/completions", json=body, headers=headers, timeout=10)


def post_reward(llm: Endpoint, reward: float = 0.5) -> httpx.Response:
    return httpx.post(llm.reward_url, json={"reward": reward}, headers={"x-api-key": llm.api_key})


class OftenLost(FunctionLauncher):
    """Loses the process of the first attempts."""

    losses = 1

    async def launch(self, task: Task, endpoint: Endpoint, deadline: float) -> Score | None:
        result = await super().launch(task, endpoint, deadline)
        if self.losses:
            self.losses -= 1
            raise AttemptLost("the worker vanished")
        return result


@pytest.fixture
def attempt(chat_tokens: Tokens, tools: Toolbox) -> Attempt:
    """Runs a function as the agent of one attempt; the model says Oslo, unless given another engine."""

    def run(
        function: Function,
        engine: ScriptedEngine | None = None,
        launcher: FunctionLauncher | None = None,
        counts: dict[str, int] | None = None,
        **settings: Any,
    ) -> Trajectory:
        chosen.append(function)
        config = AgentConfig(**{"run": f"import:{__name__}.agent", **settings})
        launcher = launcher or FunctionLauncher(str(config.run))
        engine = engine or ScriptedEngine(lambda _: chat_tokens.encode_trusted("Oslo<|im_end|>"))
        with OutsideAgent(engine, chat_tokens, tools, config, Gateway(tools=tools), launcher) as outside:
            trajectory = asyncio.run(outside.run(Task(QUESTION, group=3, sample=1, step=2)))
        if counts is not None:
            counts |= asdict(outside.counts)
        return trajectory

    return run


def returning(value: object) -> Function:
    def function(task: Task, llm: Endpoint) -> object:
        ask(llm).raise_for_status()
        return value

    return function


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        (None, None),
        (0.5, Score(0.5)),
        (1, Score(1.0)),
        (True, Score(1.0)),
        (np.float32(0.5), Score(0.5)),
        (np.bool_(True), Score(1.0)),
        (Score(1.0, {"style": 0.5}, (0.25,)), Score(1.0, {"style": 0.5}, (0.25,))),
    ],
)
def test_returned_reward(attempt: Attempt, value: object, reward: Score | None) -> None:
    counts: dict[str, int] = {}
    found = attempt(returning(value), counts=counts)
    assert (found.stop, found.answer, found.reward) == (StopReason.ANSWERED, "Oslo", reward)
    assert (found.group, found.sample, found.step) == (3, 1, 2)
    assert sum(found.sampled) == 5
    assert counts == {
        "attempts": 1, "calls": 1, "segments": 1, "forks": 0, "rewritten": 0, "helper_calls": 0, "failures": 0,
    }  # fmt: skip


def test_posted_reward(attempt: Attempt) -> None:
    def function(task: Task, llm: Endpoint) -> None:
        ask(llm)
        post_reward(llm).raise_for_status()

    assert attempt(function).reward == Score(0.5)


async def _awaited(task: Task, llm: Endpoint) -> float:
    async with httpx.AsyncClient(headers={"x-api-key": llm.api_key}) as client:
        body = {"model": "policy", "messages": [{"role": "user", "content": task.question.question}]}
        (await client.post(f"{llm.base_url}/chat/completions", json=body)).raise_for_status()
    return 0.25


def test_function_that_returns_a_coroutine(attempt: Attempt) -> None:
    assert attempt(_awaited).reward == Score(0.25)


def _raises(task: Task, llm: Endpoint) -> None:
    ask(llm)
    raise KeyError("no such tool")


def _silent(task: Task, llm: Endpoint) -> float:
    return 1.0


def _late(task: Task, llm: Endpoint) -> None:
    ask(llm)
    time.sleep(4)


def _both(task: Task, llm: Endpoint) -> float:
    ask(llm)
    post_reward(llm)
    return 1.0


@pytest.mark.parametrize(
    ("function", "facts"),
    [
        (_raises, ["KeyError", "no such tool", "test_outside.py"]),
        (_silent, ["did not call the policy", "llm.base_url"]),
        (_late, ["2 s", "agent.deadline"]),
        (_both, ["returned a reward and posted one"]),
        (returning("great"), ["'great'", "expected a number"]),
        (returning(float("nan")), ["nan"]),
        (returning(Score(1.0, turns=(1.0, 2.0))), ["2 turns", "1 calls"]),
    ],
)
def test_unusable_attempt_says_why(attempt: Attempt, function: Function, facts: Sequence[str]) -> None:
    counts: dict[str, int] = {}
    found = attempt(function, deadline=2.0, counts=counts)
    assert (found.stop, counts["failures"]) == (StopReason.FUNCTION_FAILED, 1)
    for fact in facts:
        assert fact in str(found.failure)
    assert "\n" not in str(found.failure)


@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.parametrize(
    ("settings", "text", "stop"),
    [
        ({"turns": 2}, "Where?", StopReason.OUT_OF_TURNS),
        ({"context_tokens": 200}, "Where? " * 100, StopReason.OUT_OF_TOKENS),
    ],
)
def test_used_up_limit_is_the_outcome_if_the_agent_fails_of_it(
    attempt: Attempt, settings: dict[str, Any], text: str, stop: StopReason, caught: bool
) -> None:
    def function(task: Task, llm: Endpoint) -> None:
        ask(llm).raise_for_status()
        ask(llm).raise_for_status()
        with suppress(*[httpx.HTTPStatusError] * caught):
            ask(llm, text).raise_for_status()

    found = attempt(function, **settings)
    assert found.stop.usable
    assert found.stop is (StopReason.ANSWERED if caught else stop)
    assert found.failure is None if caught else "400 Bad Request" in str(found.failure)


@pytest.mark.parametrize("crashes", [False, True])
def test_limit_from_which_the_agent_recovered_is_not_the_outcome(attempt: Attempt, crashes: bool) -> None:
    def function(task: Task, llm: Endpoint) -> float:
        ask(llm).raise_for_status()
        assert ask(llm, "Where? " * 100).json()["error"]["code"] == "context_length_exceeded"
        ask(llm, "A summary").raise_for_status()
        if crashes:
            raise KeyError("no such tool")
        return 1.0

    found = attempt(function, context_tokens=200)
    assert found.stop is (StopReason.FUNCTION_FAILED if crashes else StopReason.ANSWERED)
    assert ("no such tool" in str(found.failure)) is crashes


def test_failure_of_the_engine_even_if_the_agent_goes_on(attempt: Attempt, chat_tokens: Tokens) -> None:
    lines = iter([chat_tokens.encode("Oslo")])

    def script(_: Sequence[int]) -> Sequence[int]:
        if (line := next(lines, None)) is None:
            raise EngineFailure("out of memory")
        return line

    def function(task: Task, llm: Endpoint) -> float:
        assert [ask(llm).status_code for _ in range(2)] == [200, 500]
        return 1.0

    found = attempt(function, ScriptedEngine(script))
    assert (found.stop, found.failure) == (StopReason.ENGINE_FAILED, "out of memory")


def test_failed_search_even_if_the_agent_goes_on(attempt: Attempt) -> None:
    def function(task: Task, llm: Endpoint) -> float:
        ask(llm)
        assert [row["id"] for row in llm.search("Norway")] == ["oslo"]
        with suppress(httpx.HTTPStatusError):
            llm.search("lost")
        return 1.0

    found = attempt(function)
    assert found.stop is StopReason.SEARCH_UNAVAILABLE
    assert "it is lost" in str(found.failure)


def test_lost_attempt_is_repeated_once_in_a_new_rollout(attempt: Attempt) -> None:
    seen: list[Endpoint] = []

    def function(task: Task, llm: Endpoint) -> float:
        seen.append(llm)
        if len(seen) == 2:
            assert ask(seen[0]).status_code == 410
        ask(llm).raise_for_status()
        return 1.0

    launcher = OftenLost(f"import:{__name__}.agent")
    counts: dict[str, int] = {}
    found = attempt(function, launcher=launcher, counts=counts)
    assert (found.stop, found.reward, len(found.turns)) == (StopReason.ANSWERED, Score(1.0), 1)
    assert len({llm.base_url for llm in seen}) == len({llm.api_key for llm in seen}) == 2
    assert (counts["attempts"], counts["calls"]) == (1, 1)


def test_attempt_that_is_lost_twice_is_unusable(attempt: Attempt) -> None:
    launcher = OftenLost(f"import:{__name__}.agent")
    launcher.losses = 2
    found = attempt(returning(1.0), launcher=launcher)
    assert found.stop is StopReason.FUNCTION_FAILED
    assert "vanished" in str(found.failure)


def test_requests_after_the_deadline_are_refused(attempt: Attempt) -> None:
    codes: list[int] = []

    def function(task: Task, llm: Endpoint) -> None:
        ask(llm)
        time.sleep(0.4)
        codes.extend([ask(llm).status_code, post_reward(llm).status_code])
        ended.set()

    class Patient(FunctionLauncher):
        """Is not closed, and so keeps the gateway open, before the function has ended."""

        def close(self) -> None:
            assert ended.wait(5)
            super().close()

    ended = Event()
    found = attempt(function, launcher=Patient(f"import:{__name__}.agent"), deadline=0.2)
    assert (found.stop, found.reward, codes) == (StopReason.FUNCTION_FAILED, None, [410, 410])

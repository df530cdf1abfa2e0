"""The public API as type checkers see it: `mypy` checks `use` with the rest of the tests."""

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, assert_type, get_type_hints

import sleuth
from sleuth.api.agent import AgentAnswer, AgentEvent
from sleuth.api.gateway import GatewayRollout
from sleuth.config.tree import Config
from sleuth.evaluate.results import ScoredTrajectory
from sleuth.records import Estimate, Hit, Question, Score, StopReason, Trajectory


async def use(index: sleuth.Index, agent: sleuth.Agent, run: sleuth.Run, gateway: sleuth.Gateway) -> None:
    """A program of a user; it is checked, not run."""
    assert_type(sleuth.__version__, str)
    assert_type(sleuth.Index.build(["text", {"id": "a", "text": "b"}], "index", "bm25", k1=1.2), sleuth.Index)
    assert_type(index.search("query"), list[Hit])
    assert_type(index.search(["query"], k=2), list[list[Hit]])
    assert_type(await index.search_async("query"), list[Hit])
    index.search(3)  # type: ignore[call-overload]
    sleuth.Index.build(["text"], "index", k2=1.2)  # type: ignore[call-arg]

    assert_type(sleuth.Agent.load(run, index, settings={"agent.searches": 2}), sleuth.Agent)
    assert_type(agent.ask("Who?"), AgentAnswer)
    assert_type(agent.ask("Who?").text, str | None)
    assert_type(agent.ask("Who?").stop, StopReason)
    assert_type(iter(agent.stream("Who?")), Iterator[AgentEvent])
    assert_type(aiter(agent.stream("Who?")), AsyncIterator[AgentEvent])
    assert_type(agent.evaluate([{"question": "Who?", "golden_answers": ["Ada"]}]).em, Estimate)
    assert_type(agent.evaluate("questions.jsonl"), sleuth.Evaluation)

    def reward(question: Question, trajectory: Trajectory) -> sleuth.Reward:
        return sleuth.Reward(float(trajectory.answer in question.golden_answers), {"part": 1.0})

    async def attempt(task: sleuth.Task, llm: sleuth.Endpoint) -> float | sleuth.Reward | None:
        assert_type(llm.base_url, str)
        assert_type(task.question, Question)
        return None

    trainer = sleuth.Trainer("quickstart", reward=reward, agent=attempt, settings={"train": {"steps": 2}})
    assert_type(trainer.train(on_step=lambda step, metrics: print(step, metrics["reward/mean"])), sleuth.Run)
    assert_type(trainer.resume("runs/quickstart-1"), sleuth.Run)
    assert_type(run.path, Path)
    assert_type(run.config, Config)
    assert_type(run.checkpoint, Path | None)
    assert_type(run.summary, Mapping[str, Any] | None)
    assert_type(run.metrics(), list[dict[str, float]])
    assert_type(run.trajectories(step=1), list[ScoredTrajectory])
    assert_type(run.trajectories()[0].score, Score | None)

    assert_type(gateway.open("Who?"), GatewayRollout)
    assert_type(gateway.open("Who?").endpoint, sleuth.Endpoint)
    assert_type(await gateway.open(sleuth.Task(Question("q", "Who?", (), "mine"))).finish_async(1.0), Trajectory)


def test_public_classes_are_those_that_type_checkers_see() -> None:
    hints = get_type_hints(use)
    assert {name: hints[name].__name__ for name in ("index", "agent", "run", "gateway")} == {
        "index": "Index",
        "agent": "Agent",
        "run": "Run",
        "gateway": "Gateway",
    }
    assert sleuth.Reward is Score
    assert (Path(sleuth.__file__).parent / "py.typed").is_file()

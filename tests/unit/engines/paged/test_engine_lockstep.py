"""In lockstep a batch of episodes is reproducible bit for bit, whatever the search latency."""

import asyncio
import random
import re
from collections.abc import Callable, Sequence

import pytest
from transformers import PreTrainedModel

from sleuth.agent.conversation import Conversation
from sleuth.agent.episode import Agent, ConfiguredRunner, multi_turn, run_batch
from sleuth.agent.tags import Tags
from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.engines.paged.engine import PagedEngine
from sleuth.errors import SearchUnavailable
from sleuth.model.tokens import Tokens
from sleuth.records import Action, Answer, Hit, Passage, Question, StopReason, ToolCall, Trajectory


class Talkative(Tags):
    """A grammar in which almost anything is a search, so that a model with random weights uses it."""

    stops: tuple[str, ...] = ("e", "o")

    def parse(self, text: str) -> Action:
        return Answer(text) if text.endswith("o") else ToolCall.search(text)


class Slow:
    """A search engine that takes its time, and is out of order for one query of seven."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        await asyncio.sleep(self._dice.choice((0.0, 0.001, 0.01)))
        return [
            SearchUnavailable(query, "out of order")
            if len(query) % 7 == 3
            else [Hit(Passage("1", f'"Ada"\nAda read {len(query)} books in Oslo.'), 1.0)]
            for query in queries
        ]


@pytest.mark.parametrize("slots", [3, 16])
def test_delays_change_nothing(tiny: Callable[..., PreTrainedModel], tokens: Tokens, slots: int) -> None:
    model = tiny()
    passes: list[list[int]] = []
    model.get_input_embeddings().register_forward_hook(lambda _module, ids, _out: passes.append(ids[0].tolist()))
    engine = PagedEngine(model, tokens, slots=slots, context=257, lockstep=True)
    config = AgentConfig(prompt="brief", searches=3, turn_tokens=20, observation_tokens=24, context_tokens=256)
    tasks = [Task(Question(f"q{n % 6}", "Who wrote the book?", ("x",), "t"), n % 6, n // 6) for n in range(18)]

    def run(delays: int) -> tuple[list[Trajectory], list[list[int]]]:
        engine.publish(None, 0)
        passes.clear()
        agent = Agent(engine, tokens, Talkative(), Toolbox(Slow(delays), 1), config)
        return asyncio.run(run_batch(agent, tasks, 8)), list(passes)

    first, batches = run(1)
    assert {trajectory.stop for trajectory in first} >= {StopReason.ANSWERED, StopReason.SEARCH_UNAVAILABLE}
    assert max(len(trajectory.turns) for trajectory in first) == 4
    assert len({trajectory.ids for trajectory in first}) == 18
    for delays in (2, 3):
        again, same = run(delays)
        assert again == first
        assert same == batches


CONFIG = AgentConfig(prompt="brief", searches=3, turn_tokens=20, observation_tokens=24, context_tokens=256)
TASKS = [Task(Question(f"q{n}", "Who wrote the book?", ("x",), "t"), n) for n in range(8)]
STALLED = r"of 8 .*0\.2 s.*engine\.lockstep=off"


class Pool:
    """A method whose episodes share two workers."""

    def __init__(self) -> None:
        self._workers = asyncio.Semaphore(2)

    async def __call__(self, agent: ConfiguredRunner, task: Task, conversation: Conversation) -> Trajectory:
        async with self._workers:
            return await multi_turn(agent, task, conversation)


def test_episodes_that_wait_for_each_other_fail_by_name_and_do_not_hang(
    tiny: Callable[..., PreTrainedModel], tokens: Tokens
) -> None:
    engine = PagedEngine(tiny(), tokens, slots=8, context=257, lockstep=True, stall_timeout=0.2)
    agent = Agent(engine, tokens, Talkative(), Toolbox(Slow(1), 1), CONFIG, Pool())

    async def twice() -> tuple[list[Trajectory], Trajectory]:
        stalled = await run_batch(agent, TASKS, 8)
        engine.publish(None, 1)
        return stalled, await agent.run(TASKS[0])

    stalled, after = asyncio.run(twice())
    assert {each.stop for each in stalled} == {StopReason.ENGINE_FAILED}
    assert all(re.search(STALLED, each.failure or "") for each in stalled)
    assert after.stop is not StopReason.ENGINE_FAILED


def test_without_lockstep_such_episodes_end_by_themselves(tiny: Callable[..., PreTrainedModel], tokens: Tokens) -> None:
    engine = PagedEngine(tiny(), tokens, slots=8, context=257)
    agent = Agent(engine, tokens, Talkative(), Toolbox(Slow(1), 1), CONFIG, Pool())
    found = asyncio.run(run_batch(agent, TASKS, 8))
    assert StopReason.ENGINE_FAILED not in {each.stop for each in found}


def test_a_tool_call_may_take_longer_than_the_patience(tiny: Callable[..., PreTrainedModel], tokens: Tokens) -> None:
    class Patient:
        async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
            await asyncio.sleep(0.2)
            return [[] for _ in queries]

    engine = PagedEngine(tiny(), tokens, slots=8, context=257, lockstep=True, stall_timeout=0.02)
    agent = Agent(engine, tokens, Talkative(), Toolbox(Patient(), 1), CONFIG)
    found = asyncio.run(run_batch(agent, TASKS, 8))
    assert StopReason.ENGINE_FAILED not in {each.stop for each in found}
    assert any(len(each.turns) > 1 for each in found)

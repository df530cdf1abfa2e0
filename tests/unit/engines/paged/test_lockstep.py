"""With lockstep a batch of episodes is the same bit for bit, however long the searches take."""

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest
from transformers import PreTrainedModel

from sleuth.agent.batch import run_batch
from sleuth.agent.episode import Agent, Task
from sleuth.agent.tags import Tags
from sleuth.agent.tools import SearchTool
from sleuth.config.agent import AgentConfig
from sleuth.engines.paged.engine import Paged
from sleuth.errors import SearchUnavailable
from sleuth.model.tokens import Tokens
from sleuth.records import Action, Answer, Hit, Passage, Question, Search, StopReason, Trajectory


class Talkative(Tags):
    """A grammar in which almost anything is a search, so that a model with random weights uses it."""

    stops: tuple[str, ...] = ("e", "o")

    def parse(self, text: str) -> Action:
        return Answer(text) if text.endswith("o") else Search(text)


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
    engine = Paged(model, tokens, slots=slots, context=257, lockstep=True)
    config = AgentConfig(prompt="brief", searches=3, turn_tokens=20, observation_tokens=24, context_tokens=256)
    tasks = [Task(Question(f"q{n % 6}", "Who wrote the book?", ("x",), "t"), n % 6, n // 6) for n in range(18)]

    def run(delays: int) -> tuple[list[Trajectory], list[list[int]]]:
        engine.publish(None, 0)
        passes.clear()
        agent = Agent(engine, tokens, Talkative(), SearchTool(Slow(delays), 1), config)
        return asyncio.run(run_batch(agent, tasks, 8)), list(passes)

    first, batches = run(1)
    assert {trajectory.stop for trajectory in first} >= {StopReason.ANSWERED, StopReason.SEARCH_UNAVAILABLE}
    assert max(len(trajectory.turns) for trajectory in first) == 4
    assert len({trajectory.ids for trajectory in first}) == 18
    for delays in (2, 3):
        again, same = run(delays)
        assert again == first
        assert same == batches

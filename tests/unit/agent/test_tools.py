"""The search tool asks for as many passages as it was told."""

import asyncio

from sleuth.agent.tools import SearchTool
from sleuth.errors import SearchUnavailable
from sleuth.retrieval.base import Retriever


def test_the_best_k(retriever: Retriever) -> None:
    async def ids(k: int) -> list[str]:
        found = await SearchTool(retriever, k).search("the capital of a story about Ada")
        assert not isinstance(found, SearchUnavailable)
        return [hit.passage.id for hit in found]

    one, three = asyncio.run(ids(1)), asyncio.run(ids(3))
    assert (len(one), len(three)) == (1, 3)
    assert three[:1] == one


def test_nothing_found_is_an_answer(retriever: Retriever) -> None:
    assert asyncio.run(SearchTool(retriever, 2).search("xyzzy")) == ()

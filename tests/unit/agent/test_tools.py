"""The search tool asks for as many passages as it was told, and knows how long it waited."""

import asyncio
from collections.abc import Sequence

import pytest

from sleuth.agent.tools import Toolbox
from sleuth.errors import SearchUnavailable
from sleuth.records import Hit, ToolCall
from sleuth.retrieval.retriever import Retriever


def test_the_best_k(retriever: Retriever) -> None:
    async def ids(k: int) -> list[str]:
        found = await Toolbox(retriever, k).search("the capital of a story about Ada")
        assert not isinstance(found, SearchUnavailable)
        return [hit.passage.id for hit in found]

    one, three = asyncio.run(ids(1)), asyncio.run(ids(3))
    assert (len(one), len(three)) == (1, 3)
    assert three[:1] == one


def test_nothing_found_is_an_answer(retriever: Retriever) -> None:
    assert asyncio.run(Toolbox(retriever, 2).search("xyzzy")) == ()


def test_several_queries_are_asked_at_once_and_answered_in_order(retriever: Retriever) -> None:
    tool = Toolbox(retriever, 1)
    found = asyncio.run(tool.call(ToolCall.search("capital of Norway", "xyzzy", "Ada")))
    assert isinstance(found, tuple)
    assert [[hit.passage.id for hit in hits] for hits in found] == [["oslo"], [], ["ada"]]
    assert tool.searches.calls == 1


def test_pages_that_are_not_there_are_a_failure_not_an_empty_page(retriever: Retriever) -> None:
    found = asyncio.run(Toolbox(retriever, 1).call(ToolCall.access("https://a.no")))
    assert isinstance(found, SearchUnavailable)
    assert found.cause == "there are no pages to open"


class Slow:
    """A retriever that takes its time, and breaks on one query."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        await asyncio.sleep(0.1)
        if "broken" in queries:
            raise RuntimeError("it broke")
        return [[] for _ in queries]


def test_searches_at_once_are_waited_for_each_and_busy_together() -> None:
    tool = Toolbox(Slow(), 1)

    async def ask() -> None:
        await asyncio.gather(*(tool.search(str(number)) for number in range(4)))
        await asyncio.sleep(0.3)
        await tool.search("alone")

    asyncio.run(ask())
    assert tool.searches.calls == 5
    assert tool.searches.seconds >= 0.5
    # Two stretches of a tenth of a second; the pause between them is not one.
    assert 0.2 <= tool.searches.busy <= tool.searches.seconds - 0.25


def test_search_that_breaks_is_counted_and_over() -> None:
    tool = Toolbox(Slow(), 1)
    with pytest.raises(RuntimeError, match="it broke"):
        asyncio.run(tool.search("broken"))
    busy = tool.searches.busy
    assert (tool.searches.calls, busy >= 0.1) == (1, True)
    asyncio.run(tool.search("next"))
    assert tool.searches.busy >= busy + 0.1

"""The two tools, as the SDK's own client sees them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult, TextContent

from sleuth.errors import SearchUnavailable
from sleuth.records import Hit, Passage
from sleuth.serve.library import Library, RecentPassages
from sleuth.serve.mcp import MAX_QUERIES, WINDOW, server


class Towns:
    """Finds as many towns as asked for; `closed` has no answer, `desert` no town, `slow` waits until it is let go."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        if "slow" in queries:
            await self.waits.wait()
        return [self._answer(query, k) for query in queries]

    def _answer(self, query: str, k: int) -> list[Hit] | SearchUnavailable:
        if query == "closed":
            return SearchUnavailable(query, "the archive is closed")
        count = 0 if query == "desert" else k
        return [Hit(_town(f"{query}-{rank}"), 1 / rank) for rank in range(1, count + 1)]


def _town(name: str) -> Passage:
    return Passage(name, f'"Town {name}"\nIt has <b>bridges</b>.', {"url": f"https://towns.example/{name}", "n": 3})


class Atlas:
    """Opens `long`, a long page, and no other."""

    async def access(self, urls: Sequence[str]) -> list[Passage | SearchUnavailable | None]:
        return [Passage(url, '"Long"\n' + "x" * (WINDOW + 10)) if url == "long" else None for url in urls]


def asked(asking: Callable[[Client, Towns], Awaitable[Any]], mode: str = "auto") -> Any:
    """What comes of questions to a server over these towns."""

    async def ask() -> Any:
        towns, found = Towns(), RecentPassages()
        async with Client(server(Library(towns, (Atlas(), found), found), "towns", k=2), mode=mode) as client:
            return await asking(client, towns)

    return asyncio.run(ask())


def called(tool: str, **arguments: Any) -> tuple[str, Any, bool]:
    """Text, fields and failure of one call."""
    result: CallToolResult = asked(lambda client, _: client.call_tool(tool, arguments))
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text, result.structured_content, result.is_error


def test_there_are_two_tools_which_say_what_they_take_and_give() -> None:
    tools = {tool.name: tool for tool in asked(lambda client, _: client.list_tools()).tools}
    assert set(tools) == {"search", "fetch"}
    assert set(tools["search"].input_schema["properties"]) == {"query", "k"}
    assert tools["search"].input_schema["required"] == ["query"]
    assert set(tools["search"].output_schema["properties"]) == {"results", "unanswered"}
    assert tools["fetch"].input_schema["required"] == ["id"]
    assert all(tool.annotations.read_only_hint for tool in tools.values())


def test_results_are_text_and_fields() -> None:
    text, fields, failed = called("search", query="north", k=1)
    assert not failed
    assert text == "Found for 'north':\n\n[1] Town north-1 (id: north-1, score: 1)\nIt has <b>bridges</b>."
    assert fields == {
        "results": [
            {
                "query": "north",
                "id": "north-1",
                "title": "Town north-1",
                "text": "It has <b>bridges</b>.",
                "score": 1.0,
                "url": "https://towns.example/north-1",
            }
        ],
        "unanswered": {},
    }


def test_several_queries_are_answered_in_their_order_each_once() -> None:
    text, fields, _ = called("search", query=["north", "desert", "south", "north"])
    assert [result["id"] for result in fields["results"]] == ["north-1", "north-2", "south-1", "south-2"]
    assert "Nothing was found for 'desert'." in text


def test_a_query_without_an_answer_leaves_the_others_theirs() -> None:
    text, fields, failed = called("search", query=["closed", "north"])
    assert not failed
    assert fields["unanswered"] == {"closed": "the archive is closed"}
    assert len(fields["results"]) == 2
    assert "'closed' failed: the archive is closed" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"query": " "}, "a query is empty"),
        ({"query": ["north", ""]}, "a query is empty"),
        ({"query": []}, "there are 0 queries"),
        ({"query": ["north"] * (MAX_QUERIES + 1)}, f"there are {MAX_QUERIES + 1} queries"),
        ({"query": "x" * 10_001}, "10,001 characters"),
        ({"query": "closed"}, "the archive is closed"),
        ({"query": "north", "k": 0}, "greater than or equal to 1"),
        ({"query": "north", "k": 101}, "less than or equal to 100"),
    ],
)
def test_a_search_that_cannot_be_made_says_why(arguments: dict[str, Any], sentence: str) -> None:
    text, fields, failed = called("search", **arguments)
    assert failed
    assert sentence in text
    assert fields is None


def test_a_result_is_opened_by_its_id() -> None:
    async def search_and_fetch(client: Client, _: Towns) -> Any:
        await client.call_tool("search", {"query": "north"})
        return (await client.call_tool("fetch", {"id": "north-2"})).structured_content

    assert asked(search_and_fetch) == {
        "id": "north-2",
        "title": "Town north-2",
        "text": "It has <b>bridges</b>.",
        "start": 0,
        "characters": 22,
        "url": "https://towns.example/north-2",
        "metadata": {"url": "https://towns.example/north-2", "n": 3},
    }


def test_a_long_document_is_read_in_parts() -> None:
    text, fields, _ = called("fetch", id="long")
    assert (len(fields["text"]), fields["characters"]) == (WINDOW, WINDOW + 10)
    assert text.endswith(f"start={WINDOW})")
    text, fields, _ = called("fetch", id="long", start=WINDOW)
    assert fields["text"] == "x" * 10
    assert text.endswith("x")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"id": " "}, "the id is empty"),
        ({"id": "nowhere"}, "there is no document 'nowhere'"),
        ({"id": 7}, "there is no document '7'"),
        ({"id": "x" * 100_000}, "there is no document 'xxx"),
        ({"id": "long", "start": WINDOW + 10}, "the document has 20,010 characters"),
    ],
)
def test_a_document_that_cannot_be_opened_says_why(arguments: dict[str, Any], sentence: str) -> None:
    text, _, failed = called("fetch", **arguments)
    assert failed
    assert sentence in text
    assert len(text) < 400


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_slow_search_keeps_nobody_waiting(mode: str) -> None:
    async def overtake(client: Client, towns: Towns) -> Any:
        slow = asyncio.create_task(client.call_tool("search", {"query": "slow"}))
        quick = await client.call_tool("search", {"query": "north"})
        assert not slow.done()
        towns.waits.set()
        return [len(result.structured_content["results"]) for result in (quick, await slow)]

    assert asked(overtake, mode) == [2, 2]


def test_hidden_characters_of_documents_are_shown() -> None:
    async def search_and_fetch(client: Client, _: Towns) -> Any:
        return [
            await client.call_tool("search", {"query": "\x1b\u202e"}),
            await client.call_tool("fetch", {"id": "\x1b\u202e-1"}),
        ]

    for result in asked(search_and_fetch):
        fields = result.structured_content
        shown = [result.content[0].text, *(each["title"] for each in fields.get("results", [fields]))]
        assert not {"\x1b", "\u202e"} & set("".join(shown))
        assert "Town \ufffd\ufffd-1" in shown[0]

"""A user function as a retriever: every accepted result format, and every failure."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sleuth.errors import SearchUnavailable
from sleuth.records import Hit, Passage
from sleuth.retrieval.backends import FunctionRetriever

OSLO = Passage("1", '"Oslo"\nA city.')


def run_search(function: Callable[..., Any], queries: list[str], k: int = 3) -> list[list[Hit] | SearchUnavailable]:
    return asyncio.run(FunctionRetriever(function, "import:mine.search").search(queries, k))


async def slow(queries: list[str], k: int) -> list[list[Hit]]:
    await asyncio.sleep(0)
    return [[Hit(OSLO, 2.0)] * (k + 1) for _ in queries]


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ([Hit(OSLO, 2.0)], 2.0),
        ((Hit(OSLO, 2.0),), 2.0),
        ([{"id": "1", "contents": OSLO.contents}], 1.0),
        ([{"id": "1", "contents": OSLO.contents, "score": 0.7}], 0.7),
        ([{"document": {"id": 1, "contents": OSLO.contents}, "score": 0.5}], 0.5),
    ],
)
def test_all_row_formats_are_parsed(answer: Any, score: float) -> None:
    assert run_search(lambda *_: [answer], ["oslo"]) == [[Hit(OSLO, score)]]


@pytest.mark.parametrize("function", [slow, lambda queries, k: slow(queries, k)], ids=["itself", "in a wrapper"])
def test_async_function_is_awaited_and_its_hits_cut_to_k(function: Callable[..., Any]) -> None:
    assert run_search(function, ["a", "b"], 2) == [[Hit(OSLO, 2.0)] * 2] * 2


def test_blank_queries_are_not_passed_to_the_function() -> None:
    seen: list[str] = []

    def search(queries: list[str], k: int) -> list[list[Hit]]:
        seen.extend(queries)
        return [[Hit(OSLO, 1.0)] for _ in queries]

    assert run_search(search, ["", "oslo", " \n"]) == [[], [Hit(OSLO, 1.0)], []]
    assert seen == ["oslo"]
    assert run_search(search, [""]) == [[]]


def test_exception_makes_queries_unavailable() -> None:
    def search(queries: list[str], k: int) -> list[list[Hit]]:
        raise KeyError("no such field")

    (found,) = run_search(search, ["oslo"])
    assert isinstance(found, SearchUnavailable)
    assert "'import:mine.search' raised KeyError: 'no such field'" in str(found)
    assert f"{__file__}:" in str(found)


@pytest.mark.parametrize("answer", [None, [], [[], []], 7])
def test_answer_of_another_length_is_a_failure(answer: Any) -> None:
    (found,) = run_search(lambda *_: answer, ["oslo"])
    assert isinstance(found, SearchUnavailable)
    assert "expected one list for each of 1" in str(found)


def test_one_query_may_fail_alone() -> None:
    lost = SearchUnavailable("b", "gone")
    assert run_search(lambda *_: [[Hit(OSLO, 1.0)], lost], ["a", "b"]) == [[Hit(OSLO, 1.0)], lost]


def test_plain_function_does_not_block_the_loop() -> None:
    def sleepy(queries: list[str], k: int) -> list[list[Hit]]:
        time.sleep(0.1)
        return [[]]

    async def both() -> int:
        ticks = 0
        search = asyncio.create_task(FunctionRetriever(sleepy, "f").search(["x"], 1))
        while not search.done():
            await asyncio.sleep(0.005)
            ticks += 1
        return ticks

    assert asyncio.run(both()) > 3


def test_hanging_call_ends_at_its_deadline() -> None:
    returning = threading.Event()

    def hanging(queries: list[str], k: int) -> list[list[Hit]]:
        returning.wait()
        return [[]]

    async def hanging_too(queries: list[str], k: int) -> list[list[Hit]]:
        await asyncio.Event().wait()
        return [[]]

    for function in (hanging, hanging_too):
        (found,) = asyncio.run(FunctionRetriever(function, "import:mine.search", deadline=0.05).search(["oslo"], 3))
        assert isinstance(found, SearchUnavailable)
        assert "'import:mine.search' did not return within 0.05 s" in str(found)
    returning.set()


def test_timeout_and_stop_iteration_of_the_function_are_reported() -> None:
    def late(queries: list[str], k: int) -> list[list[Hit]]:
        raise TimeoutError("of the database")

    def stopped(queries: list[str], k: int) -> list[list[Hit]]:
        raise StopIteration

    assert "TimeoutError: of the database" in str(run_search(late, ["oslo"])[0])
    assert "StopIteration" in str(run_search(stopped, ["oslo"])[0])


def test_concurrency_is_limited_in_every_event_loop() -> None:
    under_way, most, lock = 0, 0, threading.Lock()

    def counted(queries: list[str], k: int) -> list[list[Hit]]:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.01)
        with lock:
            under_way -= 1
        return [[]]

    function = FunctionRetriever(counted, "f", concurrency=2)

    async def many() -> None:
        await asyncio.gather(*(function.search(["x"], 1) for _ in range(6)))

    for _ in range(2):
        asyncio.run(many())
    assert most == 2


def test_process_exits_while_a_call_hangs() -> None:
    code = """
import asyncio, threading
from sleuth.retrieval.backends import FunctionRetriever
print(asyncio.run(FunctionRetriever(lambda *_: threading.Event().wait(), "f", deadline=0.01).search(["x"], 1)))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0
    assert "did not return within 0.01 s" in ended.stdout

"""The playground in a real browser: asked, watched, read, stopped; and nothing that anybody wrote runs."""

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn
from playwright.sync_api import Page, expect

from sleuth.agent.episode import Agent
from sleuth.agent.tags import Tags
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import SearchUnavailable
from sleuth.model.tokens import Tokens
from sleuth.records import Hit, Passage
from sleuth.serve.agent.server import ServedModel, ServerLimits, application

pytestmark = pytest.mark.chromium

Tab = Any
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@dataclass
class Shelf:
    """Two books for every query, one of which would like to run; none until it is open."""

    open: threading.Event = field(default_factory=threading.Event)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        while not self.open.is_set():  # noqa: ASYNC110  it is set in another thread
            await asyncio.sleep(0.005)
        mild = Passage("1", '"Emma"\nEmma is by Jane Austen.', {"url": "https://books.example/emma"})
        wild = Passage("2", f'"{HOSTILE}"\n{HOSTILE}', {"url": "javascript:alert(3)"})
        return [[Hit(mild, 7.25), Hit(wild, 1.5)] for _ in queries]


@dataclass
class House:
    """A server and its shelf."""

    url: str
    shelf: Shelf

    def under_way(self) -> int:
        return int(httpx.get(f"{self.url}/health").json()["under_way"])


def write_answer(tokens: Tokens) -> ScriptedEngine:
    """Searches once and answers, in words that would like to run; `babble` never answers."""

    def script(ids: Sequence[int]) -> list[int]:
        text = tokens.decode(ids)
        if "babble" in text:
            return tokens.encode("and so on")
        if "<information>" not in text:
            return tokens.encode(f"<think> I need {HOSTILE} Emma. </think> <search> Emma {HOSTILE} </search>")
        return tokens.encode(f"<think> It is there. </think> <answer> Jane Austen {HOSTILE} </answer>")

    return ScriptedEngine(script)


@contextmanager
def serving(tokens: Tokens, terms: ServerLimits, token: str | None = None) -> Iterator[House]:
    shelf = Shelf()
    config = AgentConfig.model_validate({"prompt": "brief", "searches": 2, "context_tokens": 2000})
    agent = Agent(write_answer(tokens), tokens, Tags(), Toolbox(shelf, 2), config)
    app = application(agent, ServedModel("wise", "books", 7), terms, token=token)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield House(f"http://127.0.0.1:{listener.getsockname()[1]}", shelf)
        shelf.open.set()
        server.should_exit = True
        thread.join()


@pytest.fixture
def house(tokens: Tokens) -> Iterator[House]:
    with serving(tokens, ServerLimits()) as served:
        yield served


def ask(page: Page, question: str) -> None:
    page.get_by_label("Question").fill(question)
    page.keyboard.press("Enter")


def test_asked_watched_and_read(house: House, tab: Tab) -> None:
    page: Page = tab.page
    page.goto(house.url)
    expect(page.locator("#facts")).to_have_text("wise answers by search in books, with 2 searches at most.")
    ask(page, "Who wrote Emma?")
    transcript = page.locator(".transcript")
    # The thought and the query are there while nothing is found yet.
    expect(transcript.locator(".mark")).to_have_text("searching")
    expect(transcript.locator(".said.thought")).to_contain_text("I need")
    expect(transcript.locator(".said.search .query")).to_contain_text("Emma")
    expect(transcript.locator(".sources")).to_have_count(0)
    tab.keep("searching")
    house.shelf.open.set()
    expect(transcript.locator(".mark")).to_have_text("answered")
    expect(transcript.locator(".answer")).to_contain_text("Jane Austen")
    expect(transcript.locator(".said .label")).to_have_text(["thought", "search", "thought"])
    source = transcript.locator(".sources li").first
    expect(source.get_by_text("Emma is by Jane Austen.")).to_be_hidden()
    source.locator("summary").click()
    expect(source.get_by_text("Emma is by Jane Austen.")).to_be_visible()
    cost = dict(
        zip(transcript.locator("dt").all_text_contents(), transcript.locator("dd").all_text_contents(), strict=True)
    )
    assert (sorted(cost), cost["searches"]) == (["searches", "seconds", "tokens read", "tokens written"], "1")
    assert all(int(cost[name].replace(",", "")) > 10 for name in ("tokens read", "tokens written"))
    assert re.fullmatch(r"\d+\.\d+", cost["seconds"])
    expect(transcript.get_by_role("button", name="Stop")).to_have_count(0)
    tab.keep("answered", whole=True)


def test_nothing_that_is_written_runs(house: House, tab: Tab) -> None:
    """Dialogs and errors of scripts are faults of the tab, and its fixture finds there are none."""
    page: Page = tab.page
    house.shelf.open.set()
    page.goto(house.url)
    ask(page, f"Who wrote {HOSTILE}?")
    transcript = page.locator(".transcript")
    expect(transcript.locator(".mark")).to_have_text("answered")
    for place in ("h2", ".said.thought >> nth=0", ".said.search .query", ".sources li >> nth=1 >> .title", ".answer"):
        expect(transcript.locator(place)).to_contain_text(HOSTILE)
    assert transcript.locator("img, script, iframe").count() == 0
    transcript.locator(".sources summary").nth(1).click()
    links = transcript.locator("a").evaluate_all("links => links.map((link) => [link.getAttribute('href'), link.rel])")
    assert links == [["https://books.example/emma", "noopener noreferrer"]]
    tab.keep("hostile", whole=True)


def test_stopped_it_gives_its_place_back(house: House, tab: Tab) -> None:
    page: Page = tab.page
    page.goto(house.url)
    ways: tuple[Callable[[], None], ...] = (
        lambda: page.get_by_role("button", name="Stop").click(),
        lambda: page.keyboard.press("Escape"),
    )
    for stop in ways:
        ask(page, "Who wrote Emma?")
        expect(page.locator(".transcript .mark").first).to_have_text("searching")
        assert house.under_way() == 1
        stop()
        expect(page.locator(".transcript .mark").first).to_have_text("stopped")
        expect(page.locator(".transcript.busy")).to_have_count(0)
        while house.under_way():
            page.wait_for_timeout(10)


def test_two_questions_at_once_keep_apart(house: House, tab: Tab) -> None:
    page: Page = tab.page
    page.goto(house.url)
    ask(page, "Who wrote Emma?")
    ask(page, "What is babble?")
    newest, oldest = page.locator(".transcript").first, page.locator(".transcript").last
    expect(newest.locator(".mark")).to_have_text("no answer: out of turns")
    expect(newest.locator(".said.fault")).to_have_count(3)
    expect(oldest.locator(".mark")).to_have_text("searching")
    house.shelf.open.set()
    expect(oldest.locator(".answer")).to_contain_text("Jane Austen")
    expect(newest.locator(".answer")).to_be_empty()


def test_a_token_is_asked_for_and_refusals_are_told(tokens: Tokens, tabs: Callable[..., Tab]) -> None:
    with serving(tokens, ServerLimits(slots=1, wait=0), token="secret") as house:
        tab = tabs()
        page: Page = tab.page
        page.goto(house.url)
        expect(page.locator("#facts")).to_contain_text("bearer token")
        page.get_by_label("This server asks for a token").fill("secret")
        page.keyboard.press("Tab")
        expect(page.locator("#facts")).to_contain_text("wise answers")
        ask(page, "Who wrote Emma?")
        expect(page.locator(".transcript .mark").first).to_have_text("searching")
        ask(page, "And who wrote Persuasion?")
        expect(page.locator(".transcript .mark").first).to_contain_text("1 questions are being answered")
        house.shelf.open.set()
        expect(page.locator(".transcript .answer").last).to_contain_text("Jane Austen")
        # The browser itself notes every answer that is a refusal.
        assert [re.findall(r"status of (\d+)", fault) for fault in tab.faults] == [["401"], ["429"]]
        tab.faults.clear()


@pytest.mark.parametrize(("width", "dark"), [(360, False), (360, True), (1280, True)])
def test_on_a_phone_and_in_the_dark(house: House, tabs: Callable[..., Tab], width: int, dark: bool) -> None:
    tab = tabs(width, 740, dark=dark)
    page: Page = tab.page
    house.shelf.open.set()
    page.goto(house.url)
    ask(page, "Who wrote Emma, and " + "a" * 200 + "?")
    expect(page.locator(".transcript .mark")).to_have_text("answered")
    page.get_by_text("Options").click()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    ground, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ground, ink)]
    assert (brightness[0] < brightness[1]) is dark
    tab.keep(f"{width}-{'dark' if dark else 'light'}", whole=True)

"""The review of questions in a real browser: kept, edited, dropped and undone by keyboard, with the evidence beside."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from sleuth.http.server import BackgroundServer, bind
from sleuth.records import Passage
from sleuth.view.review import Review, application, apply_decisions, decisions_path, read_decisions

pytestmark = pytest.mark.chromium

Tab = Any
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@dataclass
class House:
    """A review server and its file."""

    url: str
    file: Path


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    file = tmp_path / "made.jsonl"
    rows = [
        {
            "id": f"q{number}",
            "question": f"Which program compresses archive {number}? {HOSTILE if number == 1 else ''}",
            "golden_answers": ["gzip"],
            "data_source": "set",
            "supporting_ids": ["p"],
            "evidence": [{"id": "p", "quote": "tar calls gzip"}],
        }
        for number in range(4)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    passage = Passage("p", f'"tar(1)"\nBy default tar calls gzip for archives. {HOSTILE}')
    listener = bind("127.0.0.1", 0)
    with Review.open(file, {"p": passage}.get) as review:
        server = BackgroundServer(application(review), listener)
        server.start()
        yield House(f"http://127.0.0.1:{listener.getsockname()[1]}/", file)
        server.close()


def actions(house: House) -> dict[str, str]:
    return {name: each.action for name, each in read_decisions(decisions_path(house.file)).items()}


def test_review_by_keyboard(house: House, tab: Tab) -> None:
    page: Page = tab.page
    page.goto(house.url)
    asked, counts = page.locator(".asked"), page.locator(".counts")
    expect(asked).to_have_text("Which program compresses archive 0?")
    expect(page.locator(".passage mark.answer")).to_have_text("gzip")
    expect(page.locator(".passage mark.quote")).to_have_text("tar calls")
    tab.keep("first")
    page.keyboard.press("k")
    expect(asked).to_contain_text("archive 1")
    expect(asked).to_contain_text("<script>")
    page.keyboard.press("d")
    expect(asked).to_contain_text("archive 2")
    expect(counts).to_contain_text("1 kept, 0 edited, 1 dropped, 2 open")
    page.keyboard.press("e")
    question = page.get_by_label("Question", exact=True)
    question.fill("Which program does tar call?")
    page.get_by_label("Answers, one per line").fill("gzip\nGNU zip\n")
    tab.keep("editing")
    page.keyboard.press("Control+Enter")
    expect(asked).to_contain_text("archive 3")
    assert actions(house) == {"q0": "keep", "q1": "drop", "q2": "edit"}
    page.keyboard.press("ArrowUp")
    expect(asked).to_have_text("Which program does tar call?")
    page.keyboard.press("p")
    expect(asked).to_contain_text("archive 1")
    page.keyboard.press("u")
    expect(counts).to_contain_text("0 dropped, 2 open")
    tab.keep("undone")
    assert actions(house) == {"q0": "keep", "q2": "edit"}
    out = house.file.with_name("out.jsonl")
    assert apply_decisions(house.file, out) == {"keep": 1, "edit": 1, "undecided": 2}
    assert [json.loads(line)["golden_answers"] for line in out.read_text().splitlines()][2] == ["gzip", "GNU zip"]


def test_edit_without_an_answer_is_refused_and_decisions_are_there_again(house: House, tab: Tab) -> None:
    page: Page = tab.page
    page.goto(house.url)
    page.get_by_role("button", name="Drop (d)").click()
    expect(page.locator(".asked")).to_contain_text("archive 1")
    page.reload()
    expect(page.locator(".counts")).to_contain_text("1 dropped")
    expect(page.locator(".list .drop")).to_have_count(1)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("drop the question")
    page.keyboard.press("Escape")
    page.locator(".list button").first.click()
    expect(page.get_by_role("button", name="Undo (u)")).to_be_visible()
    assert actions(house) == {"q0": "drop"}

"""The three reports in a browser: one family, readable anywhere, and no text in them is ever run."""

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from pypdf import PdfReader

from sleuth.page.evaluation_report import evaluation_page
from sleuth.page.index_report import index_page
from sleuth.page.run_report import run_page

pytestmark = pytest.mark.chromium

HOSTILE = (
    "</pre></p></style></title></svg><script>document.title = 'taken'</script><img src='https://a.example/x' "
    "onerror=alert(1)><iframe src='https://b.example'></iframe><style>body { display: none }</style>"
)
DEEP = "A word that stands in the last of the folded turns"
WIDE, PHONE, PAPER = 1280, 390, 690  # pixels; paper is A4 without its margins


def mean(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.05, "high": value + 0.05, "count": 40}


def row() -> dict[str, Any]:
    hit = {"id": HOSTILE, "score": 7.25, "gold": True, "title": HOSTILE, "text": f"Velcor. {HOSTILE}"}
    searched = {"action": "search", "query": HOSTILE, "hits": [hit], "outcome": "found", "tokens": 21}
    answered = {"action": "answer", "answer": HOSTILE, "hits": [], "outcome": "answered", "tokens": 14}
    return {
        "question": f"Who? {HOSTILE}",
        "golden_answers": [HOSTILE],
        "data_source": HOSTILE,
        "step": 3,
        "sample": 1,
        "turns": [
            {**searched, "text": f"<think>{HOSTILE}</think><search>{HOSTILE}</search>"},
            {**answered, "text": f"<think>{DEEP}</think><answer>{HOSTILE}</answer>"},
        ],
        "stop": "answered",
        "score": {"total": 1.0, "parts": {"em": 1.0, HOSTILE: 0.5}},
    }


def run() -> str:
    change = {"before": mean(0.1), "after": mean(0.8), "gain": mean(0.7)}
    event = {"step": 4, "guard": HOSTILE, "action": "rollback", "value": 1.5, "limit": 1, "sentence": HOSTILE}
    return run_page(
        title=HOSTILE,
        manifest={"code": HOSTILE, "config": {"name": HOSTILE, "train": {"steps": 30}}},
        metrics=[{"step": step, "reward/mean": step / 30, f"time/{HOSTILE}": 1.0} for step in range(30)],
        summary={"em_before": mean(0.1), "em_after": mean(0.8), "em_by_hops": {HOSTILE: change}, "steps": 30},
        transcripts=[row(), row()],
        events=[event],
    )


def evaluation() -> str:
    part = {"questions": 40, "unusable": 1, "em": mean(0.6), "f1": mean(0.7), "searches": mean(1.5)}
    parts = {"sets": {HOSTILE: part, "nq": part}, "kinds": {HOSTILE: part}, "mean": part}
    measures = {"em": "EM", "f1": "F1", "searches": "Searches"}
    found = {**part, **parts, "title": HOSTILE, "stamp": {"model": {"path": HOSTILE}}, "wall_seconds": 3.0}
    return evaluation_page(found, measures, [HOSTILE], [row(), row()])


def index() -> str:
    depths = {"1": mean(0.3), "3": mean(0.5), "5": mean(0.6), "10": mean(0.7)}
    part = {"questions": 40, "coverage": mean(0.9), "recall": depths, "hit": depths, "unavailable": 1}
    corpus: dict[str, Any] = {"passages": 900, "empty": 1, "duplicates": 2, "gold_here": 40, "gold": 41}
    corpus |= {"words": {"median": 80}, "lengths": [["0-25", 300], ["26-50", 600]]}
    hits = [{"title": HOSTILE, "id": HOSTILE, "score": 1.0}, {"title": DEEP, "id": "2", "score": 0.5}]
    missed = {"question": HOSTILE, "golden_answers": [HOSTILE], "hits": hits}
    checked = {"sets": {HOSTILE: part, "all": part}, "corpus": corpus, "worst": [missed]}
    return index_page(HOSTILE, {"corpus": {"path": HOSTILE}}, json.loads(json.dumps(checked)))


REPORTS: dict[str, Callable[[], str]] = {"run": run, "evaluation": evaluation, "index": index}


@pytest.fixture(params=REPORTS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where one of the reports lies."""
    path = tmp_path / "report.html"
    path.write_text(REPORTS[request.param](), encoding="utf-8")
    return path.as_uri()


def overflowing(page: Any) -> list[str]:
    """What is wider than its place, where nothing scrolls."""
    found: list[str] = page.evaluate(
        """() => [document.documentElement, ...document.querySelectorAll("main *:not(svg *)")]
        .filter(each => each.scrollWidth > each.clientWidth + 1 && each.clientWidth
            && getComputedStyle(each).overflowX === "visible" && getComputedStyle(each).display !== "inline")
        .map(each => each.tagName + "." + each.getAttribute("class"))"""
    )
    return found


def test_text_of_models_and_documents_is_shown_and_never_run(tab: Any, address: str) -> None:
    tab.page.goto(address)
    expect(tab.page.locator("h1")).to_have_text(HOSTILE)
    assert tab.page.title().startswith(HOSTILE)
    assert tab.page.locator("script, img, iframe, link, object, form, body style").count() == 0
    tab.page.locator("summary").first.click()
    tab.page.evaluate("() => document.querySelectorAll('details').forEach(each => { each.open = true })")
    expect(tab.page.get_by_text(DEEP).last).to_be_visible()
    shown = tab.page.locator("main").inner_text()
    assert shown.count("<script>document.title = 'taken'</script>") >= 8
    tab.keep("open", whole=True)
    assert tab.asked == [address]


def test_the_contents_lead_to_the_parts(tab: Any, address: str) -> None:
    tab.page.goto(address)
    for link in tab.page.locator(".contents a").all():
        link.click()
        heading = tab.page.locator(":target > h2")
        expect(heading).to_have_text(link.inner_text())
        expect(heading).to_be_in_viewport()


@pytest.mark.parametrize(("width", "dark"), [(WIDE, False), (PHONE, True)])
def test_it_fits_its_place_in_light_and_dark(tabs: Any, address: str, width: int, dark: bool) -> None:
    tab = tabs(width, 800, dark=dark)
    tab.page.goto(address)
    tab.keep("page", whole=True)
    assert overflowing(tab.page) == []
    shade = tab.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert shade == ("rgb(18, 21, 24)" if dark else "rgb(247, 247, 244)")


def test_all_of_it_is_printed_black_on_white(tabs: Any, address: str) -> None:
    tab = tabs(PAPER, 1000, dark=True)
    tab.page.goto(address)
    pdf = PdfReader(BytesIO(tab.page.pdf(format="A4")))
    printed = " ".join(" ".join(page.extract_text().split()) for page in pdf.pages)
    assert DEEP in printed  # what is folded on the screen, too
    tab.page.emulate_media(media="print")
    tab.keep("paper", whole=True)
    assert tab.page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert overflowing(tab.page) == []

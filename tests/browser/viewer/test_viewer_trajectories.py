"""Trajectories in a browser: found, read as a conversation and token by token, beside each other, and never run."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.browser.conftest import Tab
    from tests.browser.viewer.conftest import Library

pytestmark = pytest.mark.chromium


@pytest.fixture
def steady(link: Callable[[str], str]) -> Callable[[str], str]:
    """The address of the trajectories of a run, with settings."""
    return lambda settings: link(f"trajectories?run=runs/steady{settings}")


def test_filter_then_read(tab: "Tab", tabs: "Callable[..., Tab]", steady: Callable[[str], str]) -> None:
    page = tab.page
    page.goto(steady(""))
    status = page.get_by_role("status").first
    expect(status).to_have_text("384 trajectories")
    page.get_by_label("from").fill("2")
    page.get_by_label("to", exact=True).fill("3")
    page.get_by_label("to", exact=True).press("Enter")
    expect(status).to_have_text("32 trajectories")
    page.get_by_label("most").fill("0.5")
    page.get_by_label("most").press("Enter")
    page.get_by_role("combobox", name="Stop reason").select_option("out_of_turns")
    expect(page.locator(".row .ended").first).to_have_text("no turns left")
    assert "stop=out_of_turns" in page.url
    found = page.locator(".row").count()

    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("o")
    expect(page.locator(".reader .heading .badge")).to_have_text("wrong")
    expect(page.locator(".reader .conversation")).to_contain_text("no action was closed")
    tab.keep("filtered")

    again = tabs()
    again.page.goto(page.url)
    expect(again.page.locator(".row")).to_have_count(found)
    expect(again.page.locator(".reader h1")).to_have_text(page.locator(".reader h1").inner_text())
    again.page.get_by_role("button", name="clear").first.click()
    expect(again.page.get_by_role("status").first).to_have_text("384 trajectories")


def test_a_list_has_pages(tab: "Tab", steady: Callable[[str], str]) -> None:
    page = tab.page
    page.goto(steady("&order=old"))
    first = page.locator(".row").first
    expect(first).to_have_attribute("data-at", "1.0")
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text("page 2")).to_be_visible()
    expect(first).not_to_have_attribute("data-at", "1.0")
    page.get_by_role("button", name="Previous").click()
    expect(first).to_have_attribute("data-at", "1.0")


def test_read_as_a_conversation(tab: "Tab", steady: Callable[[str], str]) -> None:
    page = tab.page
    page.goto(steady("&at=24.0"))
    reader = page.locator(".reader")
    expect(reader.locator("h1")).to_have_text("In which nation is the seat of Juniper Workshop?")
    expect(reader.locator(".thought").first).to_contain_text("I need the city of Juniper Workshop.")
    expect(reader.locator(".search").nth(1)).to_contain_text("Hestor Crossing")
    expect(reader.locator(".hit").first).to_contain_text("gold")
    expect(reader.locator(".hit .score").first).to_have_text("12.25")
    expect(reader.locator(".answer .words")).to_have_text("Esteria Principality")
    expect(reader.locator(".rewards")).to_contain_text("retrieval hit")
    tab.keep("conversation")
    page.keyboard.press("j")
    expect(reader.locator(".about")).to_contain_text("sample 1")
    page.keyboard.press("k")
    expect(reader.locator(".about")).to_contain_text("sample 0")
    page.get_by_role("link", name="only this question").click()
    expect(page.get_by_role("status").first).to_have_text("64 trajectories")


def test_tokens_are_coloured_by_what_is_asked(tab: "Tab", steady: Callable[[str], str]) -> None:
    page = tab.page
    page.goto(steady("&at=12.0&view=tokens"))
    tone = "element => getComputedStyle(element).backgroundColor"
    sampled, given = page.locator(".t.sampled").first, page.locator(".t:not(.sampled)").first
    expect(sampled).to_be_visible()
    assert sampled.evaluate(tone) != given.evaluate(tone)
    seen = {sampled.evaluate(tone)}
    for overlay in ("logprob", "ratio", "advantage", "version"):
        page.locator(".tokenview").get_by_text(overlay, exact=True).click()
        expect(page.locator(f".tokenview.by-{overlay}")).to_be_visible()
        seen.add(page.locator(".t.sampled").first.evaluate(tone))
        tab.keep(overlay)
    assert len(seen) == 5
    expect(page.locator(".tokenview .legend")).to_contain_text("weights 12")
    page.locator(".t.sampled").nth(3).hover()
    expect(page.locator(".readout")).to_contain_text("logprob")
    page.locator(".tokens").press("ArrowRight")
    expect(page.locator(".t.marked")).to_have_count(1)


def test_samples_of_a_group_and_a_question_over_steps(tab: "Tab", steady: Callable[[str], str]) -> None:
    page = tab.page
    page.goto(steady("&at=4.5"))
    expect(page.locator(".reader h1")).to_be_visible()
    page.keyboard.press("g")
    expect(page.locator(".column")).to_have_count(4)
    expect(page.locator(".column.chosen")).to_contain_text("sample 1")
    tab.keep("group")
    page.keyboard.press("q")
    expect(page.locator(".oversteps tbody tr")).to_have_count(16)
    tab.keep("over-steps")
    page.locator(".chip").last.click()
    expect(page.locator(".reader .about")).to_contain_text("step 23")


def test_an_outside_agent(tab: "Tab", bare: "tuple[Library, str]") -> None:
    library, address = bare
    run = library.run("agents")
    library.step(run, 1)
    library.outside_step(run, 2)
    page = tab.page
    page.goto(f"{address}#/trajectories?run=runs/agents")
    expect(page.get_by_role("status").first).to_have_text("18 trajectories")
    page.get_by_label("at least").fill("2")
    page.get_by_label("at least").press("Enter")
    expect(page.get_by_role("status").first).to_have_text("2 trajectories")
    expect(page.locator(".row").first).to_contain_text("2 segments")
    page.locator(".row").first.click()
    reader = page.locator(".reader")
    expect(reader.locator(".about")).to_contain_text(
        "2 segments, 0 forks · roles searcher, writer · 1 call of the helper model"
    )
    expect(reader.locator(".rewards")).to_contain_text("the agent")
    expect(reader.locator(".segment")).to_have_count(2)
    expect(reader.locator(".segment").last).to_contain_text("fork of segment 0")
    expect(reader.locator(".turn.helper")).to_contain_text("The passage is about the city.")
    expect(reader.locator(".conversation")).to_contain_text("in the next prompt")
    tab.keep("conversation")
    page.keyboard.press("t")
    sections = reader.locator(".tokens section")
    expect(sections).to_have_count(2)
    expect(sections.first.locator(".t.shared")).to_have_count(0)
    shared = sections.last.locator(".t.shared").first
    expect(shared).to_be_hidden()
    legend = page.locator(".tokenview .legend")
    expect(legend).to_contain_text("sampled in a role that is not trained")
    expect(legend).to_contain_text("shared with the parent segment")
    tab.keep("tokens")
    sections.last.locator("summary").click()
    shared.hover()
    expect(page.locator(".readout")).to_contain_text("segment 1, token 0")
    expect(page.locator(".readout")).to_contain_text("shared")
    page.mouse.move(0, 0)
    page.locator(".tokens").press("ArrowLeft")
    expect(page.locator(".readout")).to_contain_text("segment 0, token")
    expect(page.locator(".t.marked")).to_have_count(1)
    tab.keep("shared")
    page.keyboard.press("g")
    expect(page.locator(".column").first.locator(".segment")).to_have_count(2)
    tab.keep("group")
    page.goto(f"{address}#/runs?run=runs/agents")
    expect(page.locator(".charts")).to_contain_text("of an outside agent, per step")


def test_text_is_never_run(tab: "Tab", steady: Callable[[str], str]) -> None:
    page = tab.page
    markup = "<img src=x onerror="
    for view in ("", "&view=tokens", "&view=group", "&view=steps"):
        page.goto(steady(f"&from=5&to=5&at=5.12{view}"))
        expect(page.locator(".reader h1")).to_contain_text(markup)
        expect(page.locator(".row").last).to_be_attached()
        assert page.locator("main img, main script, main b").count() == 0
    page.goto(steady("&at=5.12"))
    for part in (".thought", ".search", ".answer .words", ".answers"):
        expect(page.locator(f".reader {part}").first).to_contain_text(markup)
    page.locator(".reader .hit summary").last.click()
    expect(page.locator(".reader .hit p").last).to_contain_text(markup)
    assert page.evaluate("window.hacked") is None
    tab.keep("hostile")


def test_a_broken_row_is_a_plain_sentence_among_the_others(tab: "Tab", bare: "tuple[Library, str]") -> None:
    library, address = bare
    run = library.run("torn")
    library.step(run, 1)
    path, lines = run.trajectories(1), run.trajectories(1).read_bytes().splitlines()
    for row, written in ((1, lines[1][:300]), (2, b'["<img src=x onerror=alert(1)>", "<b>bold</b>"]')):
        lines[row] = written.ljust(len(lines[row]))  # as long as before, so that the others begin where they did
    path.write_bytes(b"\n".join(lines) + b"\n")
    page = tab.page
    page.goto(f"{address}#/trajectories?run=runs/torn")
    expect(page.get_by_role("status").first).to_have_text("16 trajectories")
    expect(page.locator(".row")).to_have_count(14)
    torn, wild = page.locator(".rows .unread").all()
    expect(torn).to_contain_text("row 1 of trajectories/step-1.jsonl, at byte")
    expect(torn).to_contain_text("is not a trajectory: it is not JSON")
    expect(wild).to_contain_text("<img src=x")
    assert page.locator(".rows .unread a, .rows a .unread, main img, main script, main b").count() == 0
    tab.keep("broken")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("o")
    expect(page.locator(".reader .about")).to_contain_text("sample 3")
    page.keyboard.press("g")
    expect(page.locator(".column")).to_have_count(2)
    page.goto(f"{address}#/trajectories?run=runs/torn&min=0")
    expect(page.get_by_role("status").first).to_have_text("14 trajectories")
    expect(page.locator(".unread")).to_have_count(0)


def test_a_failure_is_a_sentence_with_a_way_on(tab: "Tab", steady: Callable[[str], str]) -> None:
    page = tab.page
    page.goto(steady("&at=99.0"))
    expect(page.get_by_role("alert")).to_contain_text("Could not load")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    assert all("404" in fault for fault in tab.faults), "the browser itself notes what the server refused"
    tab.faults.clear()


def test_readable_on_a_phone(
    tabs: "Callable[..., Tab]", steady: Callable[[str], str], link: Callable[[str], str]
) -> None:
    tab = tabs(390, 844)
    page = tab.page
    too_wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    page.goto(steady(""))
    page.locator(".row").nth(1).click()
    expect(page.locator(".reader .conversation")).to_be_visible()
    expect(page.locator(".found")).to_be_hidden()
    assert page.evaluate(too_wide) == 0
    tab.keep("conversation")
    page.get_by_text("Tokens", exact=True).click()
    expect(page.locator(".tokens")).to_be_visible()
    assert page.evaluate(too_wide) == 0
    page.get_by_role("button", name="List").click()
    expect(page.locator(".found")).to_be_visible()
    for place in ("runs", "evaluations"):
        page.goto(link(place))
        expect(page.locator(".plot[data-drawn], .results").first).to_be_visible()
        assert page.evaluate(too_wide) == 0
        tab.keep(place)

"""Runs side by side in a browser: curves, marks, settings that the address keeps, and a run that is being written."""

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect

from sleuth.runs.run import Run

if TYPE_CHECKING:
    from tests.browser.conftest import Tab
    from tests.browser.viewer.conftest import Library

pytestmark = pytest.mark.chromium

DRAWN = ".chart .plot[data-drawn]"
# Where the points of the first curve of a chart stand, as plotly holds them, and the names of its curves.
STEPS = "key => Array.from(document.querySelector(`[data-chart='${key}'] .plot`).data[0].x)"
TRACES = "key => document.querySelector(`[data-chart='${key}'] .plot`).data.map(trace => trace.name)"


@pytest.fixture
def passing(library: "Library") -> "Iterator[Callable[[str], Run]]":
    """Makes runs of one step that are gone after the test: others look at the newest runs."""
    made: list[Run] = []

    def make(name: str) -> Run:
        made.append(library.run(name))
        library.step(made[-1], 1)
        return made[-1]

    yield make
    for run in made:
        shutil.rmtree(run.path)


def curves(page: Page, key: str) -> list[Any]:
    found: list[Any] = page.evaluate(TRACES, key)
    return found


def test_runs_stand_side_by_side(tab: "Tab", link: Callable[[str], str]) -> None:
    page = tab.page
    page.goto(link("runs"))
    for title in ("Reward", "Exact match", "Searches", "Entropy", "KL", "Ratio", "Length", "Step time by part"):
        figure = page.get_by_role("figure", name=title, exact=True)
        figure.scroll_into_view_if_needed()  # a chart is drawn when it comes into sight
        expect(figure.locator("[data-drawn]")).to_be_visible()
    assert {"steady", "hasty"} <= set(curves(page, "reward"))
    assert "guard" in curves(page, "kl")
    expect(page.locator(".events tbody tr")).to_have_count(2)
    expect(page.locator(".events")).to_contain_text("rolled back")
    expect(page.locator(".figures")).to_contain_text("algorithm.advantage")
    tab.keep("side-by-side", whole=True)


def test_the_address_restores_what_was_chosen(
    tab: "Tab", tabs: "Callable[..., Tab]", link: Callable[[str], str]
) -> None:
    page = tab.page
    page.goto(link("runs"))
    page.get_by_role("checkbox", name="hasty").uncheck()
    page.get_by_role("radio", name="time").check()
    page.get_by_role("slider", name="Smoothing").fill("2")
    expect(page.locator(".window")).to_have_text("mean of 5 steps")
    page.get_by_role("combobox", name="Add a chart").select_option("policy/loss")
    expect(page.get_by_role("figure", name="policy/loss")).to_be_attached()

    again = tabs().page
    again.goto(page.url)
    expect(again.locator(".window")).to_have_text("mean of 5 steps")
    expect(again.get_by_role("checkbox", name="hasty")).not_to_be_checked()
    expect(again.get_by_role("figure", name="policy/loss")).to_be_attached()
    expect(again.locator("[data-chart='reward'] [data-drawn]")).to_be_visible()
    assert curves(again, "reward")[-1] == "steady"
    assert again.evaluate(STEPS, "reward")[-1] > 1.5, "minutes of a run of two, not steps"


def test_a_run_is_followed_while_it_writes(
    tabs: "Callable[..., Tab]", library: "Library", link: Callable[[str], str]
) -> None:
    run = library.run("growing")
    library.step(run, 1)
    tab = tabs(dark=True)
    page = tab.page
    page.goto(link(f"runs?runs=runs/{run.path.name}"))
    expect(page.locator(".figures .live")).to_be_visible()
    expect(page.locator(DRAWN).first).to_be_visible()
    assert page.evaluate(STEPS, "reward") == [1]
    for step in (2, 3):
        library.step(run, step)
    run.append_event(3, {"guard": "entropy", "action": "warn", "value": 0.1, "limit": 0.2, "sentence": "it fell"})
    expect(page.locator(".events tbody tr")).to_have_count(1)
    page.wait_for_function(f"({STEPS})('reward').length === 3")
    tab.keep("live")

    page.goto(link(f"trajectories?run=runs/{run.path.name}"))
    expect(page.get_by_role("status").first).to_have_text("48 trajectories")
    library.step(run, 4)
    page.get_by_role("button", name="Show step 4").click()
    expect(page.get_by_role("status").first).to_have_text("64 trajectories")


def test_keys_and_their_list(tab: "Tab", link: Callable[[str], str]) -> None:
    page = tab.page
    page.goto(link("runs?runs=none"))
    expect(page.locator("main")).to_contain_text("No run selected")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_contain_text("x axis: steps or time")
    tab.keep("keys")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Filter runs")).to_be_focused()
    page.keyboard.type("stea")
    expect(page.locator(".runlist .run")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("x")
    page.wait_for_url("**x=time")
    page.keyboard.press("3")
    expect(page.get_by_role("heading", name="Evaluations")).to_be_visible()


def test_the_switch_changes_colours_and_is_remembered(tab: "Tab", link: Callable[[str], str]) -> None:
    page = tab.page
    ground = "getComputedStyle(document.body).backgroundColor"
    page.goto(link("evaluations"))
    light = page.evaluate(ground)
    switch = page.get_by_role("button", name="Colours")
    switch.click()
    switch.click()
    assert page.evaluate(ground) != light
    dark = page.evaluate(ground)
    page.reload()
    assert page.evaluate(ground) == dark
    tab.keep("dark")
    switch.click()
    assert page.evaluate(ground) == light


def test_where_nothing_is_the_page_says_what_to_do(tab: "Tab", link: Callable[[str], str]) -> None:
    page = tab.page
    page.goto(link("nowhere"))
    expect(page.locator("main")).to_contain_text("Page not found")
    page.goto(link("trajectories?run=runs/steady&text=nobody%20says%20this"))
    expect(page.locator("main")).to_contain_text("No trajectory matches")


def test_an_empty_folder_says_how_a_run_is_made_and_shows_it(
    tab: "Tab", tabs: "Callable[..., Tab]", bare: "tuple[Library, str]"
) -> None:
    library, address = bare
    page, reading = tab.page, tabs().page
    for each, place in ((page, "runs"), (reading, "trajectories")):
        each.clock.install()
        each.goto(f"{address}#/{place}")
        expect(each.locator("main")).to_contain_text("To start one:")
        expect(each.locator("main pre")).to_have_text("sleuth train quickstart --out runs/quickstart-1")
        for key in ("/", "x", "s", "o", "j", "k", "g", "Escape"):
            each.keyboard.press(key)
    page.goto(f"{address}#/runs")
    tab.keep("empty")
    library.step(library.run("quickstart-1"), 1)
    page.clock.run_for(9_000)
    expect(page.get_by_role("checkbox", name="quickstart-1")).to_be_checked()
    expect(page.locator(".figures .beside")).to_contain_text("quickstart-1")
    reading.clock.run_for(4_000)
    expect(reading.get_by_role("status").first).to_have_text("16 trajectories")


def test_whoever_types_into_the_filter_is_left_alone(tab: "Tab", link: Callable[[str], str]) -> None:
    page = tab.page
    page.clock.install()
    page.goto(link("runs?runs=runs/hasty&x=time"))
    expect(page.locator(".figures")).to_contain_text("hasty")
    field = page.get_by_role("searchbox", name="Filter runs")
    field.fill("stea")
    with page.expect_response("**/api/library"):
        page.clock.run_for(9_000)
    page.evaluate("() => new Promise(requestAnimationFrame)")
    expect(field).to_be_focused()
    expect(page.get_by_role("checkbox", name="steady")).not_to_be_checked()
    expect(page.locator(".figures")).not_to_contain_text("steady")


def test_runs_of_one_name_are_told_apart(
    tab: "Tab", link: Callable[[str], str], passing: "Callable[[str], Run]"
) -> None:
    passing("twin")
    passing("second/twin")
    page = tab.page
    page.goto(link("runs?runs=runs/twin,runs/second/twin"))
    expect(page.locator(".figures tbody th").first).to_be_visible()
    names = page.locator(".figures .beside tbody th").all_inner_texts()
    assert sorted(names) == ["runs/second/twin", "runs/twin"]
    expect(page.get_by_role("checkbox", name="steady", exact=True)).to_be_visible()
    page.goto(link("trajectories?run=runs/twin"))
    chosen = page.get_by_role("combobox", name="Run or evaluation").locator("option:checked")
    expect(chosen).to_have_text("runs/twin")


def test_run_that_cannot_be_read_leaves_the_others(
    tab: "Tab", link: Callable[[str], str], passing: "Callable[[str], Run]"
) -> None:
    torn = passing("torn")
    with (torn.path / "metrics.jsonl").open("ab") as file:
        file.write(b"no JSON\n")
    page = tab.page
    page.goto(link("runs?runs=runs/torn,runs/steady"))
    expect(page.get_by_role("alert")).to_contain_text("of runs/torn has an unreadable line: it is not JSON")
    expect(page.locator(".figures .beside")).to_contain_text("steady")
    page.get_by_role("checkbox", name="torn").uncheck()
    expect(page.get_by_role("alert")).to_have_count(0)
    page.goto(link("runs?runs=runs/torn"))
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_role("checkbox", name="hasty").check()
    expect(page.locator(".figures .beside")).to_contain_text("hasty")
    assert all("503" in fault for fault in tab.faults), "the browser itself notes what the server refused"
    tab.faults.clear()


def test_what_was_written_is_offered_until_it_is_taken(
    tab: "Tab", link: Callable[[str], str], passing: "Callable[[str], Run]", library: "Library"
) -> None:
    run = passing("offered")
    page = tab.page
    page.goto(link("trajectories?run=runs/offered"))
    expect(page.get_by_role("status").first).to_have_text("16 trajectories")
    library.step(run, 2)
    offer = page.get_by_role("button", name="Show step 2")
    expect(offer).to_be_visible()
    page.locator(".row").first.click()
    expect(page.locator(".reader .heading")).to_be_visible()
    offer.click()
    expect(page.get_by_role("status").first).to_have_text("32 trajectories")
    expect(offer).to_have_count(0)


def test_counts_are_whole_and_addresses_of_any_kind_are_read(tab: "Tab", link: Callable[[str], str]) -> None:
    page = tab.page
    page.goto(link("runs?runs=%25"))
    expect(page.locator("main")).to_contain_text("No run selected")
    counted = "() => import('/static/number.js').then(number => number.counted(100123, 'row'))"
    assert page.evaluate(counted) == "100,123 rows"


def test_run_that_ends_is_said_to_have_ended(
    tab: "Tab", link: Callable[[str], str], passing: "Callable[[str], Run]"
) -> None:
    run = passing("ending")
    page = tab.page
    page.clock.install()
    page.goto(link("runs?runs=runs/ending"))
    expect(page.locator(".figures .live")).to_be_visible()
    run.write_summary({"steps": 1})
    with page.expect_response("**/api/library"):
        page.clock.run_for(9_000)
    expect(page.locator(".figures .beside")).to_contain_text("finished")

"""Runs side by side in a browser: curves, marks, settings that the address keeps, and a run that is being written."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect

if TYPE_CHECKING:
    from tests.browser.conftest import Tab
    from tests.browser.viewer.conftest import Library

pytestmark = pytest.mark.chromium

DRAWN = ".chart .plot[data-drawn]"
# Where the points of the first curve of a chart stand, as plotly holds them, and the names of its curves.
STEPS = "key => Array.from(document.querySelector(`[data-chart='${key}'] .plot`).data[0].x)"
TRACES = "key => document.querySelector(`[data-chart='${key}'] .plot`).data.map(trace => trace.name)"


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
    page.get_by_role("button", name="Step 4 is there").click()
    expect(page.get_by_role("status").first).to_have_text("64 trajectories")


def test_keys_and_their_list(tab: "Tab", link: Callable[[str], str]) -> None:
    page = tab.page
    page.goto(link("runs?runs=none"))
    expect(page.locator("main")).to_contain_text("No run is chosen")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_contain_text("x by step or by time")
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
    expect(page.locator("main")).to_contain_text("There is no such page")
    page.goto(link("trajectories?run=runs/steady&text=nobody%20says%20this"))
    expect(page.locator("main")).to_contain_text("No trajectory matches")

"""Evaluations in a browser: each set with its interval, and two of them compared question by question."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.browser.conftest import Tab

pytestmark = pytest.mark.chromium


def test_sets_with_intervals_then_two_compared(
    tab: "Tab", tabs: "Callable[..., Tab]", link: Callable[[str], str]
) -> None:
    page = tab.page
    page.goto(link("evaluations"))
    expect(page.locator(".results").first).to_contain_text("atlas")
    expect(page.locator(".results .whisker")).not_to_have_count(0)
    tab.keep("sets")
    page.get_by_role("checkbox", name="Compare before").check()
    page.get_by_role("checkbox", name="Compare after").check()
    page.get_by_role("link", name="Compare").click()
    expect(page.locator(".gains tbody tr")).to_have_count(4)
    expect(page.locator(".gains .total .good").last).to_contain_text("+")
    page.locator(".foundhead").get_by_text("better").click()
    expect(page.locator(".row .sign.good").first).to_be_visible()
    page.keyboard.press("j")
    expect(page.locator(".column")).to_have_count(2)
    expect(page.locator(".column .badge.bad")).to_have_text("wrong")
    expect(page.locator(".column .badge.good").first).to_have_text("right")
    tab.keep("compared")

    again = tabs().page
    again.goto(page.url)
    expect(again.locator(".column").first).to_have_text(page.locator(".column").first.inner_text(), use_inner_text=True)


def test_another_measure_and_the_other_way_round(tab: "Tab", link: Callable[[str], str]) -> None:
    page = tab.page
    page.goto(link("compare?first=evaluations/before&second=evaluations/after"))
    page.get_by_role("combobox", name="Measure").select_option("searches")
    expect(page.locator(".foundhead")).to_contain_text("higher")
    gain = page.locator(".gains tbody tr").last.locator("td").nth(3)
    expect(gain).to_contain_text("+")
    page.get_by_role("button", name="Swap evaluations").click()
    expect(gain).to_contain_text("−")


def test_different_questions_are_compared_where_they_agree(tab: "Tab", link: Callable[[str], str]) -> None:
    page = tab.page
    page.goto(link("compare?first=evaluations/fewer&second=evaluations/after"))
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_role("button", name="Compare common questions").click()
    expect(page.locator(".gains")).to_contain_text("12 questions in both, 12 in only one")
    assert all("400" in fault for fault in tab.faults), "the browser itself notes what the server refused"
    tab.faults.clear()


def test_from_a_set_to_its_trajectories(tab: "Tab", link: Callable[[str], str]) -> None:
    page = tab.page
    page.goto(link("evaluations?evaluation=evaluations/after"))
    page.locator(".results").first.get_by_role("link", name="world").click()
    expect(page.get_by_role("status").first).to_have_text("12 trajectories")
    expect(page.get_by_role("button", name="newest first")).to_have_count(0)  # an evaluation has one order
    page.keyboard.press("o")
    expect(page.locator(".hit").first).to_contain_text("gold")
    page.locator(".hit summary").first.click()
    expect(page.locator(".hit p").first).to_contain_text("is based in the city of")

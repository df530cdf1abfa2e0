"""A page is one file that loads nothing and runs nothing."""

from collections.abc import Callable

from sleuth.page.document import document, folded, section

Read = Callable[[str], tuple[list[tuple[str, dict[str, str | None]]], str]]


def test_a_page_is_whole(read: Read) -> None:
    page = document("A <b>run</b>", section("Part", "text <i>"), folded("more", "inside"), kind="A <u>kind</u>")
    elements, text = read(page)
    assert page.startswith("<!doctype html>\n<html lang=")
    assert text.split() == ["A", "<u>kind</u>A", "<b>run</b>", "Parttext", "<i>", "moreinside"]
    assert [tag for tag, _ in elements if tag in ("html", "head", "body", "main", "h1")] == [
        "html",
        "head",
        "body",
        "main",
        "h1",
    ]


def test_a_page_of_several_sections_lists_them(read: Read) -> None:
    parts = [section(title) for title in ("One & all", "Two", "Three <3>")]
    elements, text = read(document("t", *parts))
    assert [each["href"] for tag, each in elements if tag == "a"] == ["#one-all", "#two", "#three-3"]
    assert [each["id"] for tag, each in elements if tag == "section"] == ["one-all", "two", "three-3"]
    assert text.count("Three <3>") == 2
    assert "nav" not in {tag for tag, _ in read(document("t", *parts[:2]))[0]}


def test_the_browser_is_told_to_run_nothing_and_load_nothing(read: Read) -> None:
    policies = [attributes["content"] for _, attributes in read(document("t"))[0] if "http-equiv" in attributes]
    assert len(policies) == 1
    assert (policies[0] or "").startswith("default-src 'none'; style-src 'unsafe-inline'")

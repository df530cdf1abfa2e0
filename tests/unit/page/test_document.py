"""A page is one file that loads nothing and runs nothing."""

from collections.abc import Callable

from sleuth.page.document import STYLE, document, folded, section

Read = Callable[[str], tuple[list[tuple[str, dict[str, str | None]]], str]]


def test_a_page_is_whole(read: Read) -> None:
    page = document("A <b>run</b>", section("Part", "text <i>"), folded("more", "inside"))
    elements, text = read(page)
    assert page.startswith("<!doctype html>\n<html lang=")
    assert text.split() == ["A", "<b>run</b>Parttext", "<i>", "moreinside"]
    assert [tag for tag, _ in elements if tag in ("html", "head", "body", "main", "h1")] == [
        "html",
        "head",
        "body",
        "main",
        "h1",
    ]


def test_the_browser_is_told_to_run_nothing_and_load_nothing(read: Read) -> None:
    policies = [attributes["content"] for _, attributes in read(document("t"))[0] if "http-equiv" in attributes]
    assert len(policies) == 1
    assert (policies[0] or "").startswith("default-src 'none'; style-src 'unsafe-inline'")


def test_the_style_sheet_loads_nothing_and_knows_dark_small_and_printed_pages() -> None:
    assert not [word for word in ("@import", "url(", "http", "</", "@font-face") if word in STYLE]
    assert "prefers-color-scheme: dark" in STYLE
    assert "@media print" in STYLE
    assert STYLE.count("{") == STYLE.count("}")


def test_every_colour_has_a_light_and_a_dark_value() -> None:
    for colour in range(6):
        assert STYLE.count(f"--c{colour}: #") == 2

"""Pages, tables, number formats and style sheets."""

import re
from collections.abc import Callable

import pytest

from sleuth.page.document import (
    STYLE,
    THEME,
    Section,
    document,
    duration,
    element,
    flatten,
    folded,
    interval,
    pairs,
    read_estimate,
    short,
    table,
)
from sleuth.records import Estimate

Read = Callable[[str], tuple[list[tuple[str, dict[str, str | None]]], str]]
COLOURS = dict(re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}, #[0-9a-f]{6})\)", THEME))
BACKGROUNDS = ("paper", "card", "sunk")
TEXT = ("ink", "quiet", "accent", "good", "bad", "warn")
GRAPHICS = ("c0", "c1", "c2", "c3", "c4", "c5")


def test_a_page_is_complete(read: Read) -> None:
    page = document("A <b>run</b>", Section("Part", "text <i>"), folded("more", "inside"), kind="A <u>kind</u>")
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


def test_table_of_contents(read: Read) -> None:
    parts = [Section(title) for title in ("One & all", "Two", "Three <3>")]
    elements, text = read(document("t", *parts))
    assert [each["href"] for tag, each in elements if tag == "a"] == ["#one-all", "#two", "#three-3"]
    assert [each["id"] for tag, each in elements if tag == "section"] == ["one-all", "two", "three-3"]
    assert text.count("Three <3>") == 2
    assert "nav" not in {tag for tag, _ in read(document("t", *parts[:2]))[0]}


def test_content_security_policy(read: Read) -> None:
    policies = [attributes["content"] for _, attributes in read(document("t"))[0] if "http-equiv" in attributes]
    assert len(policies) == 1
    assert (policies[0] or "").startswith("default-src 'none'; style-src 'unsafe-inline'")


def test_figures_are_right_aligned(read: Read) -> None:
    elements, _ = read(
        table(
            ["kind", "n", "EM", "gain", "note"], [["1 hop", 12, "0.5 [0.4, 0.6]", element("b", "+0.1 [0, 1]"), "1 of"]]
        )
    )
    assert [attributes.get("class") for tag, attributes in elements if tag == "td"] == [
        "figure",
        "figure",
        "figure",
        None,
    ]


def test_header_of_a_column_of_figures(read: Read) -> None:
    elements, _ = read(table(["kind", "n", "note"], [["1 hop", 12, "a few"], ["2 hops", "–", 3]]))
    assert [attributes.get("class") for tag, attributes in elements if tag == "th"][:3] == [None, "figure", None]


def test_intervals_are_dimmed() -> None:
    assert '<td class="figure">0.5<span class="quiet"> [0.4, 0.6]</span></td>' in table(
        ["a", "b"], [["x", "0.5 [0.4, 0.6]"]]
    )


def test_flatten() -> None:
    tree = {"a": {"b": {"c": 1.5}, "d": "x"}, "e": None, "f": {}}
    assert list(flatten(tree)) == [("a.b.c", "1.5"), ("a.d", "x"), ("e", "–")]


def test_cells_are_escaped(read: Read) -> None:
    elements, text = read(table(["<i>"], [["<script>"]], caption="<u>") + pairs([("<a>", "<b>")]))
    assert not {tag for tag, _ in elements} & {"i", "script", "u", "a", "b"}
    assert "<u><i><script><a><b>" in text


def test_a_row_of_another_length_raises() -> None:
    with pytest.raises(ValueError, match="2 cells; expected 1"):
        table(["a"], [["b", "c"]])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (12345, "12,345"),
        (2.0, "2"),
        (0.123456, "0.1235"),
        (1234.56, "1,234.6"),
        (1e-7, "1e-07"),
        (1e20, "1e+20"),
    ],
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_missing_numbers(value: float | None) -> None:
    assert short(value) == duration(value) == "–"


def test_short_of_other_values() -> None:
    assert (short(True), short("grpo"), short([1, 2])) == ("True", "grpo", "[1, 2]")


def test_interval() -> None:
    assert interval(Estimate(0.865, 0.8109, 0.9057, 200)) == "0.865 [0.811, 0.906]"
    assert interval(Estimate(0.5, -0.25, 1.0, 9), 2, sign=True) == "+0.50 [-0.25, +1.00]"
    assert interval(None) == "–"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.123, "4.1 s"), (59.99, "60.0 s"), (119.6, "2 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_read_estimate() -> None:
    assert read_estimate({"value": 0.5, "low": 0.25, "high": 0.75, "count": 8}) == Estimate(0.5, 0.25, 0.75, 8)
    assert read_estimate({"value": 1, "low": 0, "high": 1}) == Estimate(1.0, 0.0, 1.0, 0)
    assert read_estimate(2) == Estimate(2.0, 2.0, 2.0, 0)
    assert read_estimate(None) is read_estimate({"value": None, "low": 0, "high": 1}) is None


def test_style_is_self_contained_and_has_print_rules() -> None:
    assert not [word for word in ("@import", "url(", "http", "</", "@font-face") if word in STYLE]
    assert "@media print" in STYLE
    assert STYLE.count("{") == STYLE.count("}")


def test_all_css_variables_are_defined() -> None:
    defined = set(re.findall(r"(--[\w-]+):", STYLE))
    assert set(re.findall(r"var\((--[\w-]+)\)", STYLE)) <= defined


def test_colour_schemes() -> None:
    assert 'data-theme="light"] { color-scheme: light; }' in THEME
    assert 'data-theme="dark"] { color-scheme: dark; }' in THEME


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrast(dark: bool) -> None:
    """WCAG 2: at least 4.5 to 1 for text and 3 to 1 for graphics."""
    for background in BACKGROUNDS:
        assert {name: contrast(name, background, dark) for name in TEXT if contrast(name, background, dark) < 4.5} == {}
        assert {
            name: contrast(name, background, dark) for name in GRAPHICS if contrast(name, background, dark) < 3
        } == {}
    for name in ("accent", "good", "bad", "warn"):
        assert contrast(name, f"{name}-tint", dark) >= 4.5


def contrast(first: str, second: str, dark: bool) -> float:
    lighter, darker = sorted((_luminance(COLOURS[name].split(", ")[dark]) for name in (first, second)), reverse=True)
    return round((lighter + 0.05) / (darker + 0.05), 2)


def _luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

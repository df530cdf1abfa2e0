"""The style sheets: nothing from elsewhere, nothing undefined, and colours that can be read."""

import re

import pytest

from sleuth.page.style import PARTS, STYLE, THEME

COLOURS = dict(re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}, #[0-9a-f]{6})\)", THEME))
GROUNDS = ("paper", "card", "sunk")
READ = ("ink", "quiet", "accent", "good", "bad", "warn")
DRAWN = ("c0", "c1", "c2", "c3", "c4", "c5")


def test_nothing_is_loaded_and_paper_is_known() -> None:
    assert not [word for word in ("@import", "url(", "http", "</", "@font-face") if word in STYLE]
    assert "@media print" in PARTS
    assert STYLE.count("{") == STYLE.count("}")


def test_every_variable_that_is_used_is_defined() -> None:
    defined = set(re.findall(r"(--[\w-]+):", STYLE))
    assert set(re.findall(r"var\((--[\w-]+)\)", STYLE)) <= defined


def test_a_reader_can_choose_a_scheme() -> None:
    assert 'data-theme="light"] { color-scheme: light; }' in THEME
    assert 'data-theme="dark"] { color-scheme: dark; }' in THEME


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_from_every_ground(dark: bool) -> None:
    """By the measure of WCAG 2: 4.5 to 1 for text, 3 to 1 for what is drawn."""
    for ground in GROUNDS:
        assert {name: contrast(name, ground, dark) for name in READ if contrast(name, ground, dark) < 4.5} == {}
        assert {name: contrast(name, ground, dark) for name in DRAWN if contrast(name, ground, dark) < 3} == {}
    for name in ("accent", "good", "bad", "warn"):
        assert contrast(name, f"{name}-tint", dark) >= 4.5


def contrast(first: str, second: str, dark: bool) -> float:
    lighter, darker = sorted((_luminance(COLOURS[name].split(", ")[dark]) for name in (first, second)), reverse=True)
    return round((lighter + 0.05) / (darker + 0.05), 2)


def _luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

"""What every chart has: its title, its legend, its colours and the drawing itself."""

from collections.abc import Sequence

from sleuth.page.text import Html, element

WIDTH = 420  # a phone shows it almost at full size, so that its labels stay readable
COLOURS = 6


def figure(title: str, *content: object) -> Html:
    """A chart under its title."""
    return element("figure", element("figcaption", title), *content)


def picture(title: str, height: float, drawn: Sequence[Html]) -> Html:
    """The drawing itself, as wide as its place."""
    return element("svg", *drawn, viewBox=f"0 0 {WIDTH} {height:g}", class_="chart", role="img", aria_label=title)


def legend(keys: Sequence[tuple[str, Html]]) -> Html:
    """Names beside a sample of what they look like; nothing for a single one."""
    if len(keys) < 2:
        return Html("")
    items = (
        element("li", element("svg", sample, viewBox="0 0 28 12", aria_hidden="true"), name) for name, sample in keys
    )
    return element("ul", *items, class_="legend")


def paint(colour: int) -> str:
    """The class that sets a colour by its number."""
    return f"s{colour % COLOURS}"


def empty(title: str) -> Html:
    """A chart of nothing, which says so."""
    return figure(title, element("p", "No values were recorded.", class_="quiet"))

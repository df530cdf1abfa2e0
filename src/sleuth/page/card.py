"""The figures a page begins with, each on a card of its own."""

from collections.abc import Sequence

from sleuth.page.text import Html, element


def cards(figures: Sequence[tuple[str, ...]]) -> Html:
    """A card for each: its name, the figure, and lines that say of what."""
    return element("div", *(_card(*figure) for figure in figures), class_="cards")


def _card(name: str, figure: str, *notes: str) -> Html:
    lines = (element("div", note, class_="quiet") for note in notes)
    return element(
        "div", element("span", name, class_="label"), element("span", figure, class_="big"), *lines, class_="card"
    )

"""Tables, with the columns of figures aligned to the right."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sleuth.page.number import short
from sleuth.page.text import Html, element

_FIGURE = re.compile(r"[+−-]?[\d.,]+(\s*[%\[].*)?|–")
_INTERVAL = re.compile(r"([^\[]+)( \[[^\]]*\])")


def table(header: Sequence[object], rows: Sequence[Sequence[object]], caption: object | None = None) -> Html:
    """A table whose first column names the row; a row of another length than the header is refused."""
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a table row has {len(row)} cells under a header of {len(header)}")
    # A column begins at the right where its figures end there.
    looks = [_look(all(_is_figure(row[place]) for row in rows)) for place in range(len(header))]
    looks[:1] = [None]
    names = (element("th", cell, scope="col", class_=look) for cell, look in zip(header, looks, strict=True))
    title = () if caption is None else (element("caption", caption),)
    body = element("tbody", *(_row(row) for row in rows))
    return element("div", element("table", *title, element("thead", element("tr", *names)), body), class_="scroll")


def pairs(entries: Sequence[tuple[object, object]]) -> Html:
    """Names and values in two columns, without a header."""
    lines = (
        element("tr", element("th", name, scope="row"), element("td", element("code", value)))
        for name, value in entries
    )
    return element("div", element("table", element("tbody", *lines), class_="pairs"), class_="scroll")


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The values of nested tables under dotted names."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", short(value)


def _row(row: Sequence[object]) -> Html:
    first, *rest = row
    cells = (element("td", _cell(cell), class_=_look(_is_figure(cell))) for cell in rest)
    return element("tr", element("th", first, scope="row"), *cells)


def _cell(cell: object) -> object:
    """A figure with an interval says the figure first."""
    parts = _INTERVAL.fullmatch(cell) if isinstance(cell, str) and not isinstance(cell, Html) else None
    return Html(parts[1] + element("span", parts[2], class_="quiet")) if parts and _is_figure(cell) else cell


def _look(figures: bool) -> str | None:
    return "figure" if figures else None


def _is_figure(cell: object) -> bool:
    visible = re.sub(r"<[^<>]*+>", "", str(cell)).strip()
    return isinstance(cell, int | float) or _FIGURE.fullmatch(visible) is not None

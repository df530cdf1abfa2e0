"""Tables, with the columns of figures aligned to the right."""

import re
from collections.abc import Sequence

from sleuth.page.text import Html, element, joined

_FIGURE = re.compile(r"[+−-]?[\d.,]+(\s*[%\[].*)?|–")


def table(header: Sequence[object], rows: Sequence[Sequence[object]], caption: object | None = None) -> Html:
    """A table whose first column names the row; a row of another length than the header is refused."""
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a table row has {len(row)} cells under a header of {len(header)}")
    head = element("thead", element("tr", *(element("th", cell, scope="col") for cell in header)))
    body = element("tbody", *(_row(row) for row in rows))
    title = () if caption is None else (element("caption", caption),)
    return element("div", element("table", *title, head, body), class_="scroll")


def pairs(entries: Sequence[tuple[object, object]]) -> Html:
    """Names and values in two columns, without a header."""
    lines = (
        element("tr", element("th", name, scope="row"), element("td", element("code", value)))
        for name, value in entries
    )
    return element("div", element("table", element("tbody", *lines), class_="pairs"), class_="scroll")


def _row(row: Sequence[object]) -> Html:
    first, *rest = row
    cells = (element("td", cell, class_="figure" if _is_figure(cell) else None) for cell in rest)
    return element("tr", element("th", first, scope="row"), joined(cells))


def _is_figure(cell: object) -> bool:
    visible = re.sub(r"<[^>]*>", "", str(cell)).strip()
    return isinstance(cell, int | float) or _FIGURE.fullmatch(visible) is not None

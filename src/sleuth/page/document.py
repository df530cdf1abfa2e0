"""Self-contained HTML pages without scripts: escaped markup, sections, cards, tables and number formats."""

import html
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from sleuth.records import Estimate

# Control characters and terminal escapes, directional overrides, lone surrogates. A carriage return is allowed only as
# part of a line break.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]|\r(?!\n)"
)
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
_LOCAL_URL = re.compile(r"#.*|/?[\w.%-]+(/[\w.%-]+)*/?([?#].*)?")
_URL_ATTRIBUTES = frozenset({"href", "src", "action"})
_VOID = frozenset({"br", "hr", "meta"})


def visible(text: str) -> str:
    """Replace each character that hides or reorders text, or moves the cursor, with U+FFFD."""
    return _HIDDEN.sub("\ufffd", text)


class Html(str):
    """Safe markup; concatenating or formatting it returns a plain string, which is escaped again."""

    __slots__ = ()


def escaped(content: object) -> Html:
    return content if isinstance(content, Html) else Html(html.escape(visible(str(content))))


def joined(parts: Iterable[object], separator: str = "") -> Html:
    return Html(escaped(separator).join(escaped(part) for part in parts))


def element(tag: str, *content: object, **attributes: object) -> Html:
    """Build an element; `class_` becomes class, `stroke_width` stroke-width, and None attributes are omitted."""
    opening = "".join([tag, *(_attribute(name, value) for name, value in attributes.items() if value is not None)])
    if not _NAME.fullmatch(tag):
        raise ValueError(f"{tag!r} is not an element name")
    return Html(f"<{opening}>" if tag in _VOID else f"<{opening}>{joined(content)}</{tag}>")


def _attribute(name: str, value: object) -> str:
    written = name.rstrip("_").replace("_", "-")
    if not _NAME.fullmatch(written) or written.lower().startswith("on"):
        raise ValueError(f"{name!r} is not allowed: expected an attribute name that is not an event handler")
    if written in _URL_ATTRIBUTES and not _LOCAL_URL.fullmatch(str(value)):
        raise ValueError(f"{name} = {str(value)!r} is not a local address; expected a #fragment or a plain path")
    # Inside an attribute, Html is escaped too: it may contain quotes.
    return f' {written}="{escaped(str(value))}"'


_PACKAGE = files("sleuth.page")
THEME = Html((_PACKAGE / "theme.css").read_text(encoding="utf-8"))  # colours, fonts and spacing as variables
STYLE = Html(THEME + (_PACKAGE / "parts.css").read_text(encoding="utf-8"))  # with tables, charts, cards, transcripts

# The browser enforces what escaping is meant to ensure: no scripts, no connections.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_CONTENTS_FROM = 3  # minimum number of sections for a table of contents
_FIGURE = re.compile(r"[+−-]?[\d.,]+(\s*[%\[].*)?|–")
_INTERVAL = re.compile(r"([^\[]+)( \[[^\]]*\])")

ABSENT = "–"


class Section:
    def __init__(self, title: str, *content: object) -> None:
        self.title, self.content = title, content

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    def html(self) -> Html:
        return element("section", element("h2", self.title), *self.content, id=self.anchor)


def document(title: str, *parts: object, kind: str = "") -> Html:
    """Build a complete HTML page; `kind` is shown above the title."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", f"{title} · {kind}" if kind else title),
        element("style", STYLE),
    )
    sections = [part for part in parts if isinstance(part, Section)]
    heading = [element("p", kind, class_="kind")] if kind else []
    heading += [element("h1", title)]
    if len(sections) >= _CONTENTS_FROM:
        links = (element("li", element("a", each.title, href=f"#{each.anchor}")) for each in sections)
        heading += [element("nav", element("ul", *links, class_="contents"), aria_label="Contents")]
    content = (part.html() if isinstance(part, Section) else part for part in parts)
    main = element("main", element("header", *heading, class_="head"), "\n", joined(content, "\n"))
    return Html(f"<!doctype html>\n{element('html', head, element('body', main), lang='en')}\n")


def folded(summary: object, *content: object) -> Html:
    return element("details", element("summary", summary), *content)


def cards(figures: Sequence[tuple[str, ...]]) -> Html:
    """Build one card per figure: its name, value, and lines of explanation."""
    return element(
        "div",
        *(
            element(
                "div",
                element("span", name, class_="label"),
                element("span", value, class_="big"),
                *(element("div", note, class_="quiet") for note in notes),
                class_="card",
            )
            for name, value, *notes in figures
        ),
        class_="cards",
    )


def table(header: Sequence[object], rows: Sequence[Sequence[object]], caption: object | None = None) -> Html:
    """Build a table with row names in the first column and right-aligned figures."""
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a table row has {len(row)} cells; expected {len(header)}, as in the header")
    columns = [all(_is_figure(row[place]) for row in rows) for place in range(len(header))]
    names = (
        element("th", cell, scope="col", class_="figure" if place and figures else None)
        for place, (cell, figures) in enumerate(zip(header, columns, strict=True))
    )
    lines = (
        element(
            "tr",
            element("th", first, scope="row"),
            *(element("td", _cell(cell), class_="figure" if _is_figure(cell) else None) for cell in rest),
        )
        for first, *rest in rows
    )
    title = () if caption is None else (element("caption", caption),)
    body = element("tbody", *lines)
    return element("div", element("table", *title, element("thead", element("tr", *names)), body), class_="scroll")


def pairs(entries: Sequence[tuple[object, object]]) -> Html:
    lines = (
        element("tr", element("th", name, scope="row"), element("td", element("code", value)))
        for name, value in entries
    )
    return element("div", element("table", element("tbody", *lines), class_="pairs"), class_="scroll")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the formatted values of nested tables under dotted names."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", short(value)


def _cell(cell: object) -> object:
    parts = _INTERVAL.fullmatch(cell) if isinstance(cell, str) and not isinstance(cell, Html) else None
    return Html(parts[1] + element("span", parts[2], class_="quiet")) if parts and _is_figure(cell) else cell


def _is_figure(cell: object) -> bool:
    text = re.sub(r"<[^<>]*+>", "", str(cell)).strip()
    return isinstance(cell, int | float) or _FIGURE.fullmatch(text) is not None


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, figures: bool = True) -> list[str]:
    """Return the lines of a Markdown table; `figures` right-aligns all but the first column. Cells are escaped."""
    rule = ("---", *["---:" if figures else "---"] * (len(header) - 1))
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (header, rule, *rows))
    return [f"| {' | '.join(row)} |" for row in cells]


def read_estimate(written: Any) -> Estimate | None:
    """Read an estimate from JSON; a bare number has no interval."""
    match written:
        case {"value": float() | int() as value, "low": float() | int() as low, "high": float() | int() as high}:
            return Estimate(float(value), float(low), float(high), int(written.get("count") or 0))
        case int() | float():
            return Estimate(float(written), float(written), float(written), 0)
        case _:
            return None


def interval(estimate: Estimate | None, decimals: int = 3, sign: bool = False) -> str:
    """Format an estimate as `0.865 [0.811, 0.906]`; with `sign`, every number is signed."""
    if estimate is None or not math.isfinite(estimate.value):
        return ABSENT
    value, low, high = (
        f"{number:{'+' if sign else ''}.{decimals}f}" for number in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} [{low}, {high}]"


def short(value: object) -> str:
    """Format a number of any size in a few characters; format other values with str()."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ABSENT if value is None else str(value)
    if not math.isfinite(value):
        return ABSENT
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.1f}" if 1e3 <= abs(value) < 1e15 else f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """Format a duration as `3 min 20 s`, `2 h 05 min` or `4.1 s`."""
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"

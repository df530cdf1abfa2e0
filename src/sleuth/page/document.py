"""A whole page and its style sheet: one file, no script, nothing loaded from anywhere."""

import re
from dataclasses import dataclass

from sleuth.page.style import STYLE
from sleuth.page.text import Html, element, joined

# The browser itself enforces what escaping promises: no script, no connection.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_LISTED = 3  # sections from which a page has a list of them


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page under a heading of its own, to which a link leads."""

    title: str
    content: tuple[object, ...]

    @property
    def anchor(self) -> str:
        """The name of the section in an address."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    def written(self) -> Html:
        """The section as markup."""
        return element("section", element("h2", self.title), *self.content, id=self.anchor)


def document(title: str, *parts: object, kind: str = "") -> Html:
    """A complete HTML page that needs no other file; `kind` says above the title what sort of page it is."""
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
    heading += [_contents(sections)] if len(sections) >= _LISTED else []
    written = (part.written() if isinstance(part, Section) else part for part in parts)
    main = element("main", element("header", *heading, class_="head"), "\n", joined(written, "\n"))
    return Html(f"<!doctype html>\n{element('html', head, element('body', main), lang='en')}\n")


def section(title: str, *content: object) -> Section:
    """A part of the page under a heading of its own."""
    return Section(title, content)


def folded(summary: object, *content: object) -> Html:
    """Content that opens on a click, and on paper."""
    return element("details", element("summary", summary), *content)


def _contents(sections: list[Section]) -> Html:
    links = (element("li", element("a", each.title, href=f"#{each.anchor}")) for each in sections)
    return element("nav", element("ul", *links, class_="contents"), aria_label="Contents")

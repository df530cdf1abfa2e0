"""Markup that cannot be made by accident: only `Html` stands in a page as it is, any other text is escaped."""

import html
import re
from collections.abc import Iterable

# Terminal escapes and other controls, directional overrides, and lone surrogates, which cannot be encoded. A carriage
# return alone overwrites the line before it; one at the end of a line is part of the line break.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]|\r(?!\n)"
)
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
_NEARBY = re.compile(r"#.*|/?[\w.%-]+(/[\w.%-]+)*/?([?#].*)?")
_ADDRESSES = frozenset({"href", "src", "action"})
_VOID = frozenset({"br", "hr", "meta"})


def visible(text: str) -> str:
    """Text for a reader: what would move the cursor, hide or reorder other text is shown as U+FFFD, one for one."""
    return _HIDDEN.sub("\ufffd", text)


class Html(str):
    """Finished markup; adding to it, joining or formatting it gives a plain string, which is escaped again."""

    __slots__ = ()


def escaped(content: object) -> Html:
    """Any content as markup: Html unchanged, everything else as text that a browser shows and never runs."""
    if isinstance(content, Html):
        return content
    return Html(html.escape(visible(str(content))))


def joined(parts: Iterable[object], separator: str = "") -> Html:
    """The parts one after the other, each escaped unless it is Html."""
    return Html(escaped(separator).join(escaped(part) for part in parts))


def element(tag: str, *content: object, **attributes: object) -> Html:
    """An element; `class_` is written class, `stroke_width` stroke-width, and attributes that are None are left out."""
    opening = "".join([tag, *(_attribute(name, value) for name, value in attributes.items() if value is not None)])
    if not _NAME.fullmatch(tag):
        raise ValueError(f"{tag!r} is no element name")
    return Html(f"<{opening}>" if tag in _VOID else f"<{opening}>{joined(content)}</{tag}>")


def _attribute(name: str, value: object) -> str:
    written = name.rstrip("_").replace("_", "-")
    if not _NAME.fullmatch(written) or written.lower().startswith("on"):
        raise ValueError(f"{name!r} is no attribute of a page without scripts")
    if written in _ADDRESSES and not _NEARBY.fullmatch(str(value)):
        raise ValueError(f"{name} = {str(value)!r} is no address of this site; give a #fragment or a plain path")
    # Html may hold quotes: inside an attribute nothing is markup, so it is escaped like any text.
    return f' {written}="{escaped(str(value))}"'

"""HTML building: only `Html` is inserted as markup, any other text is escaped."""

import html
import re
from collections.abc import Iterable

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
    """Replace characters that hide or reorder text or move the cursor by U+FFFD, one for one."""
    return _HIDDEN.sub("\ufffd", text)


class Html(str):
    """Finished markup; concatenating or formatting it gives a plain string, which is escaped again."""

    __slots__ = ()


def escaped(content: object) -> Html:
    """Escape anything but Html."""
    return content if isinstance(content, Html) else Html(html.escape(visible(str(content))))


def joined(parts: Iterable[object], separator: str = "") -> Html:
    """Concatenate parts, escaping anything but Html."""
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
        raise ValueError(f"{name!r} is not allowed: expected an attribute name that is no event handler")
    if written in _URL_ATTRIBUTES and not _LOCAL_URL.fullmatch(str(value)):
        raise ValueError(f"{name} = {str(value)!r} is not a local address; expected a #fragment or a plain path")
    # Inside an attribute, Html is escaped too: it may contain quotes.
    return f' {written}="{escaped(str(value))}"'

"""The style sheets of the house, read once: what other pages than reports take their looks from, too."""

from importlib.resources import files

from sleuth.page.text import Html

_HERE = files("sleuth.page")
THEME = Html((_HERE / "theme.css").read_text(encoding="utf-8"))  # colours, type and room, as variables
PARTS = Html(
    (_HERE / "parts.css").read_text(encoding="utf-8")
)  # tables, figures, cards and transcripts, drawn with them
STYLE = Html(THEME + PARTS)

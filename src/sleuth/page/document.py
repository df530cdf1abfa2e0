"""A whole page and its style sheet: one file, no script, nothing loaded from anywhere."""

from sleuth.page.text import Html, element, joined

# The browser itself enforces what escaping promises: no script, no connection.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

_COLOURS = """
:root { color-scheme: light dark; --paper: #fcfcfa; --card: #ffffff; --ink: #1c1f23; --quiet: #5b6370; --line: #d9dce1;
  --good: #17703a; --bad: #b3261e; --tint: #eef3fa;
  --c0: #1f5fbf; --c1: #c4500a; --c2: #14804a; --c3: #8a3fb8; --c4: #a8780a; --c5: #0e7f8f; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --card: #1b1f25; --ink: #e7e9ec; --quiet: #a0a8b4;
  --line: #363c45; --good: #6ccf8e; --bad: #ff8a80; --tint: #212a36;
  --c0: #79aef5; --c1: #f59b5b; --c2: #63c990; --c3: #c99bea; --c4: #e0bd56; --c5: #5cc4d2; } }
"""

_LAYOUT = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 70rem; padding: 1.25rem 1rem 3rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0; }
p { margin: .5rem 0; max-width: 46rem; }
code, pre { font: .875em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { white-space: pre-wrap; margin: .4rem 0; }
.quiet { color: var(--quiet); } .good { color: var(--good); } .bad { color: var(--bad); }
.cards, .charts { display: grid; gap: 1rem; }
.cards { grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); margin: 1rem 0; }
.charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); }
.card, figure, .transcript { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; }
.card { padding: .7rem .9rem; }
.card .big { display: block; font-size: 1.5rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
"""

_TABLES = """
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--quiet); padding-bottom: .3rem; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { color: var(--quiet); font-weight: 600; }
tbody th, td.figure { white-space: nowrap; }
tbody th { font-weight: 600; }
.pairs th { font-weight: 400; color: var(--quiet); } .pairs td { overflow-wrap: anywhere; min-width: 8rem; }
summary { cursor: pointer; }
"""

_CHARTS = """
figure { margin: 0; padding: .7rem .8rem .4rem; }
figcaption { font-weight: 600; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 0 1rem; margin: .15rem 0 0; padding: 0;
  font-size: .85rem; font-weight: 400; color: var(--quiet); }
.legend svg { width: 1.4rem; height: .6rem; margin-right: .35rem; }
.chart { display: block; width: 100%; height: auto; }
.chart text { fill: var(--quiet); font: 12px system-ui, sans-serif; }
.chart .value { fill: var(--ink); }
.grid { stroke: var(--line); stroke-width: 1; } .axis { stroke: var(--quiet); stroke-width: 1; }
.s0 { --c: var(--c0); } .s1 { --c: var(--c1); } .s2 { --c: var(--c2); }
.s3 { --c: var(--c3); } .s4 { --c: var(--c4); } .s5 { --c: var(--c5); }
.stroke { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.faint { stroke-width: 1; opacity: .4; } .rule { stroke-dasharray: 6 4; }
.fill { fill: var(--c); } .band { fill: var(--c); opacity: .15; } .bar { fill: var(--c); opacity: .8; }
.whisker { fill: none; stroke: var(--ink); stroke-width: 1.5; }
.mark-line { fill: var(--bad); stroke: var(--bad); stroke-width: 1; stroke-dasharray: 2 3; }
.column { fill: var(--ink); opacity: 0; } .column:hover { opacity: .07; }
"""

_TRANSCRIPTS = """
.transcript { margin: 0 0 1rem; padding: .9rem; }
.transcript header { display: flex; flex-wrap: wrap; gap: .3rem .8rem; align-items: baseline; margin-bottom: .5rem; }
.said { border-left: 3px solid var(--line); padding: .1rem 0 .1rem .8rem; margin: .5rem 0; white-space: pre-wrap; }
.said.search { border-color: var(--c0); } .said.answer { border-color: var(--c2); }
.said.fault { border-color: var(--bad); }
.label { display: block; font-size: .75rem; letter-spacing: .04em; text-transform: uppercase; color: var(--quiet); }
.hits { margin: .3rem 0 .3rem 1rem; padding-left: 1.2rem; font-size: .92rem; }
.hits p { margin: 0; white-space: pre-wrap; }
.mark { font-size: .8rem; border: 1px solid currentColor; border-radius: 1rem; padding: 0 .5rem; white-space: nowrap; }
@media print { body { max-width: none; padding: 0; background: none; font-size: 10pt; }
  figure, .card, .transcript { break-inside: avoid; } .column { display: none; }
  details::details-content { content-visibility: visible; height: auto; } }
"""

STYLE = Html(_COLOURS + _LAYOUT + _TABLES + _CHARTS + _TRANSCRIPTS)


def document(title: str, *sections: object) -> Html:
    """A complete HTML page that needs no other file."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", title),
        element("style", STYLE),
    )
    body = element("body", element("main", element("h1", title), joined(sections, "\n")))
    return Html(f"<!doctype html>\n{element('html', head, body, lang='en')}\n")


def section(title: str, *content: object) -> Html:
    """A part of the page under a heading of its own."""
    return element("section", element("h2", title), *content)


def folded(summary: object, *content: object) -> Html:
    """Content that opens on a click."""
    return element("details", element("summary", summary), *content)

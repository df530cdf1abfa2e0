"""The report of a training run: what it reached, what it taught, how it went and how it was made."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sleuth.page.card import cards
from sleuth.page.change import change_charts, change_table, changes, estimate, losses, over
from sleuth.page.curves import curves
from sleuth.page.document import document, folded, section
from sleuth.page.noticed import markings, noticed
from sleuth.page.number import ABSENT, duration, interval, short
from sleuth.page.pace import pace
from sleuth.page.table import leaves, pairs
from sleuth.page.text import Html, element
from sleuth.page.transcript import transcript
from sleuth.records import Estimate

Tree = Mapping[str, Any]

_INTERVALS = (
    "Brackets hold 95% intervals over the questions: Wilson's for exact match, a bootstrap for other means; a gain is "
    "paired, question by question, and stands in bold where its interval excludes zero."
)


def run_page(
    *,
    title: str,
    manifest: Tree,
    metrics: Sequence[Tree],
    summary: Tree,
    transcripts: Sequence[Tree],
    events: Sequence[Tree] = (),
    parity: Tree | None = None,
) -> Html:
    """The whole report as one page; what the summary lacks is shown as absent."""
    ceiling = estimate((summary.get("ceiling") or {}).get("em"))
    return document(
        title,
        _headline(summary),
        section("Before and after, by kind of question", *_before_and_after(summary)),
        section("What the run noticed", *noticed(events, parity)),
        section("How training went", curves(metrics, _around(summary), ceiling, markings(events))),
        section("Where the time went", *pace(metrics)),
        section("Transcripts", *map(transcript, transcripts)),
        section("Settings", folded("Every setting of the run", pairs(list(leaves(manifest.get("config") or {}))))),
        section("How this was made", *_making(manifest)),
        kind="Sleuth · training run",
    )


def _headline(summary: Tree) -> Html:
    before, after, sampled_before, sampled_after = (
        estimate(summary.get(name)) for name in ("em_before", "em_after", "em_sampled_before", "em_sampled_after")
    )
    asked = (summary.get("held_out") or {}).get("questions")
    figures = [("Exact match", *_step(before, after), f"greedy, {over(before, after, asked)} held-out questions")]
    if sampled_before or sampled_after:
        count = over(sampled_before, sampled_after, asked)
        figures.append(("Exact match", *_step(sampled_before, sampled_after), f"sampled, {count} held-out questions"))
    return cards(
        [
            *figures,
            ("Time", duration(summary.get("seconds")), f"{short(summary.get('steps'))} steps"),
            ("Peak memory", f"{short(summary.get('peak_memory_gib'))} GiB"),
            ("Tokens", short(summary.get("tokens"))),
        ]
    )


def _step(before: Estimate | None, after: Estimate | None) -> tuple[str, str]:
    """The values with an arrow between them, and their intervals likewise."""
    values, spans = zip(*(interval(each).partition(" ")[::2] for each in (before, after)), strict=True)
    return " → ".join(values), " → ".join(span or ABSENT for span in spans)


def _before_and_after(summary: Tree) -> Iterator[Html]:
    found = changes(summary)
    yield change_table(found)
    yield from (element("p", sentence, class_="note") for sentence in losses(summary))
    what = (summary.get("ceiling") or {}).get("what")
    if what:
        yield element("p", "The expert's ceiling: ", what, class_="note")
    yield element("p", _INTERVALS, class_="note")
    yield change_charts(found)


def _around(summary: Tree) -> dict[float, Estimate]:
    """The evaluations before and after training, by the step they stand at."""
    points = ((0, summary.get("em_before")), (summary.get("steps") or 0, summary.get("em_after")))
    found = ((float(step), estimate(written)) for step, written in points)
    return {step: known for step, known in found if known is not None}


def _making(manifest: Tree) -> Iterator[Html]:
    yield element("p", "Drawn by Sleuth from the manifest, metrics, summary and trajectories in the folder of the run.")
    yield pairs([(name, value) for name, value in leaves(manifest) if not name.startswith("config.")])

"""A trajectory as a conversation: what the model thought, searched, was shown and answered, and what it earned."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sleuth.page.document import folded
from sleuth.page.number import short
from sleuth.page.text import Html, element, joined
from sleuth.records import Outcome, StopReason

Row = Mapping[str, Any]

_STOPS = {
    StopReason.ANSWERED: "answered",
    StopReason.OUT_OF_TURNS: "stopped: no turns left",
    StopReason.OUT_OF_TOKENS: "stopped: no tokens left",
    StopReason.SEARCH_UNAVAILABLE: "unusable: the search engine failed",
    StopReason.ENGINE_FAILED: "unusable: generation failed",
    StopReason.FUNCTION_FAILED: "unusable: a user's function failed",
}
_REFUSALS: dict[str, str] = {
    Outcome.REFUSED: "Refused: no searches were left.",
    Outcome.UNAVAILABLE: "The search engine gave no answer.",
}
_TRAINED = (("step", "step"), ("sample", "sample"))  # of no meaning in an evaluation, whose step is 0
_LABELS = {"fault": "no valid action"}
_CLOSING = re.compile(r"</(search|answer|tool_call)>")
_THOUGHT_TAG = re.compile(r"</?think>")


def transcript(row: Row) -> Html:
    """A trajectory row as an article that opens on a click; every text in it is shown as written and never run.

    Beside the fields of the trajectory format it shows, where there: `question`, `golden_answers` and `kind` of the
    row, `text`, `answer` and `reason` of a turn, `title` and `text` of a hit.
    """
    question = row.get("question") or row.get("question_id", "")
    heading = [element("h3", question, dir="auto"), " ", _verdict(row), " ", _origin(row)]
    turns = (_turn(turn) for turn in row.get("turns") or ())
    return element("article", folded(joined(heading), *turns, _closing(row)), class_="transcript")


def _verdict(row: Row) -> Html:
    """Right, wrong or unusable; what failed through no fault of the model is never called wrong."""
    stop = StopReason(row["stop"])
    if not stop.usable:
        return element("span", "unusable", class_="mark quiet")
    score = row.get("score") or {}
    right = (score.get("parts") or {}).get("em", score.get("total"))
    if right is None:
        return Html("")
    return element("span", "right" if right >= 1 else "wrong", class_=f"mark {'good' if right >= 1 else 'bad'}")


def _origin(row: Row) -> Html:
    known = [
        f"{name} {row[key]}" if name else str(row[key])
        for key, name in (("kind", ""), ("data_source", ""), *_TRAINED)
        if row.get(key) is not None and (row.get("step") or not name)
    ]
    return element("span", ", ".join(known), class_="quiet")


def _turn(turn: Row) -> Html:
    text = str(turn.get("text") or "")
    thought, content = _parts(text)
    match turn.get("action"):
        case "search":
            asked = turn.get("queries") or [turn.get("query") or content]
            said = [_said("thought", thought), *(_said("search", each) for each in asked), _results(turn)]
        case "access":
            said = [_said("thought", thought), *(_said("access", each) for each in turn["urls"]), _results(turn)]
        case "answer":
            # What such a turn has found was searched for it, and shown before it spoke.
            said = [_results(turn), _said("thought", thought)]
            said += [_said("answer", turn.get("answer") or content or "(empty)")]
        case _:
            said = [_results(turn), _said("fault", text or "(empty)"), _note(turn.get("reason") or "")]
    refusal = _REFUSALS.get(str(turn.get("outcome")), "")
    return joined([*said, _note(refusal), _sampled(turn, text)])


def _parts(text: str) -> tuple[str, str]:
    """What stands before the action, without the tags around it, and what stands in the action."""
    closing = _CLOSING.search(text)
    if closing is None:
        return _THOUGHT_TAG.sub("", text).strip(), ""
    thought, _, content = text[: closing.start()].rpartition(f"<{closing[1]}>")
    return _THOUGHT_TAG.sub("", thought).strip(), content.strip()


def _said(act: str, text: str) -> Html:
    if not text:
        return Html("")
    label = element("span", _LABELS.get(act, act), class_="label")
    return element("div", label, element("span", text, dir="auto"), class_=f"said {act}")


def _note(text: str) -> Html:
    return element("p", text, class_="quiet") if text else Html("")


def _sampled(turn: Row, text: str) -> Html:
    """The turn as the model wrote it, tags and all, folded away."""
    if not text:
        return Html("")
    return folded(
        element("span", f"as sampled, {short(turn.get('tokens'))} tokens", class_="quiet"), element("pre", text)
    )


def _results(turn: Row) -> Html:
    hits: Sequence[Row] = turn.get("hits") or ()
    if not hits and turn.get("outcome") == Outcome.FOUND:
        return _note("Nothing was found.")
    return element("ol", *(_hit(hit) for hit in hits), class_="hits") if hits else Html("")


def _hit(hit: Row) -> Html:
    mark = element("span", "gold passage", class_="mark good") if hit.get("gold") else ""
    line = [element("strong", hit.get("title") or hit.get("id", ""), dir="auto"), " "]
    line += [element("span", f"score {short(hit.get('score'))}", class_="quiet"), " ", mark]
    return element("li", *line, element("p", hit["text"], dir="auto") if hit.get("text") else "")


def _closing(row: Row) -> Html:
    golden, score = row.get("golden_answers"), row.get("score")
    lines = [element("p", _STOPS[StopReason(row["stop"])], class_="quiet")]
    if golden:
        lines.append(element("p", "Right answers: ", element("strong", ", ".join(map(str, golden)), dir="auto")))
    if score:
        marks = [("reward", score.get("total")), *(score.get("parts") or {}).items()]
        lines.append(element("ul", *(_mark(name, value) for name, value in marks), class_="marks"))
    return element("footer", *lines)


def _mark(name: str, value: float | None) -> Html:
    return element("li", f"{name.replace('_', ' ')} ", element("strong", short(value)))

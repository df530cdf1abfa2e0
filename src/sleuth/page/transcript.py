"""Transcripts: a trajectory as a conversation with thoughts, searches, results, the answer and its score."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sleuth.page.document import Html, element, folded, joined, short
from sleuth.records import Outcome, StopReason

Row = Mapping[str, Any]

_STOPS = {
    StopReason.ANSWERED: "answered",
    StopReason.OUT_OF_TURNS: "stopped: no turns left",
    StopReason.OUT_OF_TOKENS: "stopped: no tokens left",
    StopReason.SEARCH_UNAVAILABLE: "unusable: the search engine failed",
    StopReason.ENGINE_FAILED: "unusable: generation failed",
    StopReason.FUNCTION_FAILED: "unusable: a tool or user function failed",
}
_REFUSALS: dict[str, str] = {
    Outcome.REFUSED: "Refused: no calls were left.",
    Outcome.UNAVAILABLE: "The tool gave no answer.",
}
_CLOSING = re.compile(r"</(search|answer|tool_call)>")
_THOUGHT_TAG = re.compile(r"</?think>")


def transcript(row: Row) -> Html:
    """Build a collapsible article for a trajectory row; all text is escaped.

    Optional fields beyond the trajectory format: `question`, `golden_answers` and `kind` of the row; `text`, `answer`
    and `reason` of a turn; `title` and `text` of a hit.
    """
    question = row.get("question") or row.get("question_id", "")
    known = [str(row[key]) for key in ("kind", "data_source") if row.get(key) is not None]
    if row.get("step"):  # 0 in evaluations
        known += [f"{key} {row[key]}" for key in ("step", "sample") if row.get(key) is not None]
    origin = element("span", ", ".join(known), class_="quiet")
    heading = [element("h3", question, dir="auto"), " ", _verdict(row), " ", origin]
    return element("article", folded(joined(heading), *_turns(row), _footer(row)), class_="transcript")


def _verdict(row: Row) -> Html:
    """Format the verdict: right, wrong or unusable; failed episodes are never called wrong."""
    if not StopReason(row["stop"]).usable:
        return element("span", "unusable", class_="mark quiet")
    score = row.get("score") or {}
    if row.get("reward") is not None and not row.get("golden_answers"):  # only the agent can tell
        return element("span", f"reward {short(score.get('total'))}", class_="mark quiet")
    right = (score.get("parts") or {}).get("em", score.get("total"))
    if right is None:
        return Html("")
    return element("span", "right" if right >= 1 else "wrong", class_=f"mark {'good' if right >= 1 else 'bad'}")


def _turns(row: Row) -> Iterator[Html]:
    """Yield the turns, with a heading where the segment changes if there are several segments or roles."""
    segments = row.get("segments") or ()  # absent from rows with one plain segment
    divided, current = len(segments) > 1 or any(each.get("role") for each in segments), None
    for turn in row.get("turns") or ():
        number = turn.get("segment", 0)
        if number is None:
            yield _speech("result", str(turn.get("text") or "(empty)"), "helper model, not trained on")
            continue
        if divided and number != current and number < len(segments):
            yield _segment_heading(number, segments[number])
        current = number
        yield _turn(turn)


def _segment_heading(number: int, segment: Row) -> Html:
    role = f", {segment['role']}" if segment.get("role") else ""
    fork = f", {short(segment.get('shared'))} tokens shared with segment {segment['parent']}"
    shared = "" if segment.get("parent") is None else fork
    return element("p", element("strong", f"Segment {number}{role}"), shared, class_="segment")


def _turn(turn: Row) -> Html:
    text, content = str(turn.get("text") or ""), ""
    thought = text
    if closing := _CLOSING.search(text):
        thought, _, content = text[: closing.start()].rpartition(f"<{closing[1]}>")
    thought, content = _THOUGHT_TAG.sub("", thought).strip(), content.strip()
    match turn.get("action"):
        case "search":
            queries = turn.get("queries") or [turn.get("query") or content]
            parts = [_speech("thought", thought), *(_speech("search", each) for each in queries), _results(turn)]
        case "access":
            parts = [_speech("thought", thought), *(_speech("access", each) for each in turn["urls"]), _results(turn)]
        case "tool":
            name = str(turn["name"])
            thought = _THOUGHT_TAG.sub("", text.partition(f"<{name}>")[0].partition("<tool_call>")[0]).strip()
            parts = [_speech("thought", thought), _speech("search", call_text(turn), name)]
            parts.append(_speech("result", str(turn.get("result") or ""), f"{name} result"))
        case "answer":
            # Its hits were retrieved before generation (method rag).
            answer = turn.get("answer") or content or "(empty)"
            thought = thought if closing else thought.removesuffix(str(answer)).strip()  # an answer without tags
            parts = [_results(turn), _speech("thought", thought), _speech("answer", answer)]
        case _:
            parts = [_results(turn), _speech("fault", text or "(empty)", "no valid action")]
            parts += [_note(turn.get("reason") or "")]
    parts.append(_note(_REFUSALS.get(str(turn.get("outcome")), "")))
    if text:
        label = element("span", f"as sampled, {short(turn.get('tokens'))} tokens", class_="quiet")
        parts.append(folded(label, element("pre", text)))
    return joined(parts)


def call_text(turn: Row) -> str:
    """Format the arguments of a tool call: the bare value if there is a single string, otherwise JSON."""
    arguments = turn.get("arguments") or {}
    values = list(arguments.values())
    return values[0] if len(values) == 1 and isinstance(values[0], str) else json.dumps(arguments, ensure_ascii=False)


def _speech(kind: str, text: str, label: str = "") -> Html:
    if not text:
        return Html("")
    name = element("span", label or kind, class_="label")
    return element("div", name, element("span", text, dir="auto"), class_=f"said {kind}")


def _note(text: str) -> Html:
    return element("p", text, class_="quiet") if text else Html("")


def _results(turn: Row) -> Html:
    hits: Sequence[Row] = turn.get("hits") or ()
    if not hits and turn.get("outcome") == Outcome.FOUND:
        return _note("Nothing was found.")
    items = []
    for hit in hits:
        line = [element("strong", hit.get("title") or hit.get("id", ""), dir="auto"), " "]
        line += [element("span", f"score {short(hit.get('score'))}", class_="quiet"), " "]
        line += [element("span", "gold passage", class_="mark good") if hit.get("gold") else ""]
        items.append(element("li", *line, element("p", hit["text"], dir="auto") if hit.get("text") else ""))
    return element("ol", *items, class_="hits") if items else Html("")


def _footer(row: Row) -> Html:
    golden, score = row.get("golden_answers"), row.get("score")
    lines = [element("p", _STOPS[StopReason(row["stop"])], class_="quiet")]
    if golden:
        lines.append(element("p", "Right answers: ", element("strong", ", ".join(map(str, golden)), dir="auto")))
    if score:
        source = "reward from the agent" if row.get("reward") is not None else "reward"
        parts = [(source, score.get("total")), *(score.get("parts") or {}).items()]
        items = (element("li", f"{name.replace('_', ' ')} ", element("strong", short(value))) for name, value in parts)
        lines.append(element("ul", *items, class_="marks"))
    return element("footer", *lines)

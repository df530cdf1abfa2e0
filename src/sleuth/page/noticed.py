"""What a run noticed about itself: the verdicts of its guards, and how close its engine is to its trainer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sleuth.page.axis import drawable
from sleuth.page.chart import Mark
from sleuth.page.number import ABSENT, short
from sleuth.page.table import table
from sleuth.page.text import Html, element

Rows = Sequence[Mapping[str, Any]]

_HEADER = ("Step", "Guard", "Done", "Value", "Limit", "What it saw")
_DONE = {"warn": "warned", "skip": "step skipped", "rollback": "rolled back", "stop": "run stopped"}
_GRAVE = ("rollback", "stop")


def noticed(events: Rows, parity: Mapping[str, Any] | None) -> Iterator[Html]:
    """A row for each verdict, oldest first, and a line on parity where it was measured.

    What a guard said the same way step after step is one row, with the figures of the last.
    """
    if events:
        yield table(_HEADER, [_row(stretch) for stretch in _stretches(events)])
    else:
        yield element("p", "No guard had anything to say.")
    if parity:
        yield element("p", _parity(parity), class_="note")


def markings(events: Rows) -> list[Mark]:
    """The steps at which a guard began to speak, for the curves; each step once."""
    spoken: dict[float, list[str]] = {}
    for first, *_ in _stretches(events):
        if drawable(first.get("step")):
            spoken.setdefault(first["step"], []).append(_name(first))
    return [Mark(", ".join(dict.fromkeys(names)), step) for step, names in spoken.items()]


def _stretches(events: Rows) -> list[list[Mapping[str, Any]]]:
    found: list[list[Mapping[str, Any]]] = []
    latest: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for event in events:
        key, step = (event.get("guard"), event.get("action")), event.get("step")
        last = latest[key][-1].get("step") if key in latest else None
        if isinstance(step, int) and isinstance(last, int) and step == last + 1:
            latest[key].append(event)
        else:
            latest[key] = [event]
            found.append(latest[key])
    return found


def _row(stretch: Rows) -> list[object]:
    event = stretch[-1]
    first, last = short(stretch[0].get("step")), short(event.get("step"))
    action = str(event.get("action", ABSENT))
    done = element("span", _DONE.get(action, action), class_="bad" if action in _GRAVE else None)
    figures = (short(event.get(name)) for name in ("value", "limit"))
    return [first if first == last else f"{first}–{last}", _name(event), done, *figures, event.get("sentence", ABSENT)]


def _name(event: Mapping[str, Any]) -> str:
    return str(event.get("guard", ABSENT)).replace("_", " ")


def _parity(parity: Mapping[str, Any]) -> str:
    mean, most, k3, tokens = (short(parity.get(name)) for name in ("mean", "maximum", "k3", "tokens"))
    where = ", ".join(str(parity[name]) for name in ("dtype", "device") if parity.get(name))
    return (
        f"Logprobs of engine and trainer, as last compared at step {short(parity.get('step'))}: {mean} apart in the "
        f"mean and {most} at most (k3 {k3}, {tokens} tokens{', ' if where else ''}{where})."
    )

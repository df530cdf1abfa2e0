"""What the guards of a run said, as its report shows it."""

from collections.abc import Callable
from typing import Any

from sleuth.page.curves import curves
from sleuth.page.noticed import markings, noticed
from sleuth.page.text import joined

Read = Callable[[str], tuple[list[tuple[str, dict[str, str | None]]], str]]
PARITY = {
    "step": 40,
    "mean": 2e-7,
    "maximum": 6.3e-6,
    "k3": 1.8e-13,
    "tokens": 576,
    "dtype": "float32",
    "device": "cpu",
}


def event(step: int, guard: str, action: str, value: float | None = 0.98, limit: float | None = 0.5) -> dict[str, Any]:
    sentence = f"{guard} at {step}"
    return {"step": step, "guard": guard, "action": action, "value": value, "limit": limit, "sentence": sentence}


def test_every_verdict_has_its_row_with_both_figures(read: Read) -> None:
    events = [event(7, "answerless", "rollback"), event(12, "non_finite", "skip", None, None)]
    elements, text = read(joined(noticed(events, None)))
    assert "7answerlessrolled back0.980.5answerless at 7" in text
    assert "12non finitestep skipped––non_finite at 12" in text
    assert [each.get("class") for tag, each in elements if tag == "span"] == ["bad", None]


def test_what_is_said_step_after_step_is_one_row(read: Read) -> None:
    steps = [(3, "entropy"), (3, "parity"), (4, "entropy"), (5, "entropy"), (7, "entropy")]
    elements, text = read(joined(noticed([event(step, name, "warn") for step, name in steps], None)))
    assert [tag for tag, _ in elements].count("tr") == 1 + 3
    assert "3–5entropywarned0.980.5entropy at 5" in text
    assert "7entropywarned" in text


def test_a_step_rolled_back_twice_has_two_rows(read: Read) -> None:
    elements, _ = read(joined(noticed([event(2, "malformed", "rollback")] * 2, None)))
    assert [tag for tag, _ in elements].count("tr") == 1 + 2


def test_a_quiet_run_says_so_and_how_close_its_engine_is(read: Read) -> None:
    _, text = read(joined(noticed([], PARITY)))
    assert "No guard had anything to say." in text
    assert "at step 40: 2e-07 apart in the mean and 6.3e-06 at most (k3 1.8e-13, 576 tokens, float32, cpu)." in text


def test_the_curves_bear_a_mark_where_a_guard_spoke(read: Read) -> None:
    rows = [{"step": step, "reward/mean": 0.5, "time/step": 1.0} for step in range(1, 11)]
    lasting = [event(step, "answerless", "warn") for step in (4, 5, 6)]
    events = [event(4, "malformed", "rollback"), *lasting, event(40, "entropy", "warn")]
    elements, text = read(curves(rows, {}, None, markings(events)))
    drawn = [each["d"] for _, each in elements if each.get("class") == "mark-line"]
    assert drawn == ["M166.67,10V190m-4,0h8l-4,-7z"]
    assert "step 4: malformed, answerless" in text

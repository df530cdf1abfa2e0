"""Law 3: a new knob is a visible diff."""

from pathlib import Path

from sleuth.cli.knobs import lines

SNAPSHOT = Path(__file__).with_name("knobs.txt")


def test_knobs_are_those_of_the_snapshot() -> None:
    recorded = SNAPSHOT.read_text().splitlines()
    assert list(lines()) == recorded, f"if the change is meant, record it: sleuth knobs > {SNAPSHOT}"

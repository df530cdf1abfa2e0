"""A new or changed setting shows up as a diff of the snapshot."""

from pathlib import Path

from sleuth.cli.settings import lines

SNAPSHOT = Path(__file__).with_name("settings.txt")


def test_settings_match_the_snapshot() -> None:
    recorded = SNAPSHOT.read_text().splitlines()
    assert list(lines()) == recorded, f"if the change is intended, record it: sleuth settings > {SNAPSHOT}"

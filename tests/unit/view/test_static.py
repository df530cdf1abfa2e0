"""The stop reasons of the viewer scripts are those of StopReason."""

import re
from pathlib import Path

import sleuth.view
from sleuth.records import StopReason

SCRIPT = Path(sleuth.view.__file__).parent / "static" / "verdict.js"


def test_stop_reasons() -> None:
    text = SCRIPT.read_text()
    words = re.search(r"STOPS = \{(.*?)\}", text, re.DOTALL)
    unusable = re.search(r"UNUSABLE = new Set\(\[(.*?)\]\)", text, re.DOTALL)
    assert words
    assert unusable
    assert set(re.findall(r"^\s*(\w+):", words[1], re.MULTILINE)) == {each.value for each in StopReason}
    assert set(re.findall(r'"(\w+)"', unusable[1])) == {each.value for each in StopReason if not each.usable}

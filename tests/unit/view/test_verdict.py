"""The viewer's words for how an episode ended are those of StopReason, each of them."""

import re
from pathlib import Path

import sleuth.view
from sleuth.records import StopReason

SCRIPT = Path(sleuth.view.__file__).parent / "static" / "verdict.js"


def test_every_reason_has_a_word_and_failures_are_unusable() -> None:
    text = SCRIPT.read_text()
    words = re.search(r"STOPS = \{(.*?)\}", text, re.DOTALL)
    unusable = re.search(r"UNUSABLE = new Set\(\[(.*?)\]\)", text, re.DOTALL)
    assert words
    assert unusable
    assert set(re.findall(r"^\s*(\w+):", words[1], re.MULTILINE)) == {each.value for each in StopReason}
    assert set(re.findall(r'"(\w+)"', unusable[1])) == {each.value for each in StopReason if not each.usable}

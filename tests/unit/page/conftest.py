"""Pages read back the way a browser reads them."""

from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

Element = tuple[str, dict[str, str | None]]
VOID = {"br", "hr", "meta"}


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.texts: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "head"} & set(self.open):
            self.texts.append(data)


@pytest.fixture
def read() -> Callable[[str], tuple[list[Element], str]]:
    """The elements of balanced markup, and the text a reader sees."""

    def parse(markup: str) -> tuple[list[Element], str]:
        reader = Reader()
        reader.feed(markup)
        reader.close()
        assert reader.open == []
        return reader.elements, "".join(reader.texts)

    return parse


@pytest.fixture
def row() -> dict[str, Any]:
    """A trajectory row of a run folder, with the text of its turns and hits."""
    return {
        "version": 1,
        "question_id": "q7",
        "question": "Where was the founder of Velcor born?",
        "golden_answers": ["Amrund", "Old Amrund"],
        "data_source": "world",
        "group": 3,
        "sample": 1,
        "step": 40,
        "turns": [
            {
                "action": "search",
                "query": "Velcor founder",
                "hits": [
                    {
                        "id": "12",
                        "score": 7.25,
                        "gold": True,
                        "title": "Velcor",
                        "text": "Velcor was founded by Ada Rim.",
                    },
                    {"id": "99", "score": 3.5, "gold": False},
                ],
                "outcome": "found",
                "tokens": 21,
                "text": "<think>I need the founder.</think><search> Velcor founder </search>",
            },
            {
                "action": "malformed",
                "reason": "neither a search nor an answer was closed",
                "hits": [],
                "outcome": "corrected",
                "tokens": 5,
                "text": "hmm hmm",
            },
            {
                "action": "answer",
                "answer": "Amrund",
                "hits": [],
                "outcome": "answered",
                "tokens": 14,
                "text": "<think>Ada Rim was born in Amrund.</think><answer> Amrund </answer>",
            },
        ],
        "stop": "answered",
        "score": {"total": 1.0, "parts": {"em": 1.0, "f1": 1.0, "searches": 1.0}},
    }

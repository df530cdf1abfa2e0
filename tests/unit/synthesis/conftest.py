"""A manual of fifty invented tools, good questions about it, and a teacher that writes them."""

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from sleuth.records import Passage
from sleuth.synthesis.candidate import Candidate, Evidence

SYLLABLES = ("bra", "dor", "fen", "gil", "hup", "jos", "kel", "lum", "mov", "nip", "pez", "rud", "sab", "tev", "wix")
VERBS = ("copies", "merges", "splits", "checks", "sorts")
THINGS = ("ledgers", "invoices", "meshes", "recipes", "timetables")


def tool_names(count: int = 50) -> list[str]:
    random = Random(5)
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(random.sample(SYLLABLES, 2))] = None
    return list(found)


def tool_passage(name: str, number: int) -> Passage:
    """A page of the manual; every number and path occurs once."""
    text = (
        f"{name} {VERBS[number % 5]} {THINGS[number // 5 % 5]} from a remote depot and keeps a journal of its work.\n"
        f"--batch\nSet the number of rows that are sent together. The default is {100 + number}.\n"
        f"The journal of {name} is stored in /var/lib/{name}/journal.{number}.\n"
        f"The maintainer of {name} is called Person{number} Quill."
    )
    extra: dict[str, object] = {"source": f"{name}.md", "position": 0}
    return Passage(f"{name}.md#0", f'"{name}(1)"\n{text}', extra)


@pytest.fixture(scope="session")
def manual() -> list[Passage]:
    return [tool_passage(name, number) for number, name in enumerate(tool_names())]


@pytest.fixture(scope="session")
def good(manual: list[Passage]) -> list[Candidate]:
    """One good question about every tool."""
    found = []
    for number, passage in enumerate(manual):
        name = passage.title.removesuffix("(1)")
        quote = f"The maintainer of {name} is called Person{number} Quill."
        question = f"Who is the maintainer of {name}?"
        found.append(Candidate(question, (f"Person{number} Quill",), (Evidence(passage, quote),), "test"))
    return found


class Script:
    """A teacher's replies by what it is asked; `known` are questions that it answers without documents."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.misread: set[str] = set()

    def __call__(self, messages: Sequence[dict[str, Any]]) -> str:
        system, last = str(messages[0]["content"]), str(messages[-1]["content"])
        if "quiz questions about a text" in system:
            return self._propose(last)
        if "quiz questions that need two texts" in system:
            return "I cannot think of one."
        if "Text:" in last:
            return self._read(last)
        tool = re.search(r"of (\w+)\?", last)
        return f"Person{self._number(last)} Quill" if tool and tool[1] in self.known else "nobody"

    def _propose(self, text: str) -> str:
        name = re.search(r"Title: (\w+)", text)
        person = re.search(r"Person\d+ Quill", text)
        if name is None or person is None:
            return "Sorry."
        quote = f"The maintainer of {name[1]} is called {person[0]}."
        return (
            f"Here are the questions:\n\n**Question 1:** Who is the maintainer of {name[1]}?\n"
            f"**Answer:** {person[0]}.\n**Evidence:** {quote}\n\n"
            f"Q: Where is it stored?\nA: /var/lib/{name[1]}/journal\nE: {quote}\n\n"
            f"2. Question: What does {name[1]} cost?\nAnswer: 7 euros\nEvidence: The price of {name[1]} is 7 euros.\n"
        )

    def _read(self, text: str) -> str:
        asked = re.search(r"maintainer of (\w+)\?", text)
        if asked is None or asked[1] in self.misread:
            return "unknown"
        person = re.search(rf"maintainer of {asked[1]} is called (Person\d+ Quill)", text)
        return f"Answer: {person[1]}" if person else "unknown"

    @staticmethod
    def _number(question: str) -> int:
        names = tool_names()
        return next(number for number, name in enumerate(names) if name in question)


@pytest.fixture
def script() -> Script:
    return Script()


Teach = Callable[[Sequence[dict[str, Any]]], str]

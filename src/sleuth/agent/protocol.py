"""The grammars in which the model acts and is answered."""

import re
from collections.abc import Callable, Sequence
from typing import Protocol as TypingProtocol

from sleuth.hooks import chosen
from sleuth.records import Action, Answer, Hit, Malformed, Search


class Protocol(TypingProtocol):
    """A grammar: how actions are read, how observations are written, where generation stops."""

    stops: tuple[str, ...]
    instruction: str

    def parse(self, text: str) -> Action:
        """The action in a turn's text; total, it never raises."""
        ...

    def act(self, action: Search | Answer) -> str:
        """The text of an action, as the model would write it."""
        ...

    def observe(self, hits: Sequence[Hit]) -> tuple[str, str, str]:
        """Opening, body and closing of what the model is shown; only the body may be cut."""
        ...

    def correct(self, action: Malformed) -> tuple[str, str, str]:
        """What the model is told after a turn outside the grammar; in three parts, as `observe`."""
        ...


class Tags:
    """think, search, information and answer in angle brackets, as Search-R1."""

    stops: tuple[str, ...] = ("</search>", "</answer>")
    instruction = (
        "Work out the answer to the question step by step. Put your reasoning between <think> and </think>, before "
        "every action. Whenever you lack a fact, ask the search engine by writing <search> your query </search>; what "
        "it finds is shown to you between <information> and </information>. Search as often as you need. When you know "
        "the answer, give it alone and short between <answer> and </answer>, for example <answer> Lisbon </answer>."
    )
    _opening, _closing = "\n\n<information>", "</information>\n\n"
    _done = re.compile(r"</(search|answer)>")
    _tag = re.compile(r"<\s*(/?)\s*(think|search|information|answer)\s*>", re.IGNORECASE)

    def parse(self, text: str) -> Action:
        closing = self._done.search(text)
        if closing is None:
            return Malformed("neither a search nor an answer was closed")
        name = closing[1]
        _, opening, content = text[: closing.start()].rpartition(f"<{name}>")
        if not opening:
            return Malformed(f"</{name}> closes nothing that was opened")
        content = content.strip()
        if name == "answer":
            return Answer(content)
        return Search(content) if content else Malformed("the search is empty")

    def act(self, action: Search | Answer) -> str:
        match action:
            case Search(query):
                return f"<search> {query} </search>"
            case Answer(text):
                return f"<answer> {text} </answer>"

    def observe(self, hits: Sequence[Hit]) -> tuple[str, str, str]:
        documents = [
            f"Doc {number}(Title: {self._quiet(hit.passage.title)}) {self._quiet(hit.passage.text)}\n"
            for number, hit in enumerate(hits, 1)
        ]
        return self._opening, "".join(documents) or "Nothing was found.\n", self._closing

    def correct(self, action: Malformed) -> tuple[str, str, str]:
        told = (
            f"No action was taken: {action.reason}. Write <search> query </search> to search or "
            "<answer> answer </answer> to answer."
        )
        return self._opening, told, self._closing

    def _quiet(self, text: str) -> str:
        """Document text with the grammar's tags in round brackets, so that it cannot speak for the model."""
        return self._tag.sub(r"(\1\2)", text)


PROTOCOLS: dict[str, Callable[[], Protocol]] = {"tags": Tags}


def named(name: str) -> Protocol:
    """A protocol by name, or by `import:package.function` that returns one."""
    return chosen("agent.protocol", name, PROTOCOLS)()

"""The protocol of tags: think, search, information and answer in angle brackets, as Search-R1."""

import re
from collections.abc import Sequence

from sleuth.agent.observation import Observation
from sleuth.agent.quiet import LONGEST
from sleuth.agent.template import Function
from sleuth.records import Access, Action, Answer, Hit, Malformed, Search


class Tags:
    """A turn thinks and then searches or answers; observations stand in the same turn, right behind the search."""

    stops: tuple[str, ...] = ("</search>", "</answer>")
    functions: tuple[Function, ...] = ()
    _opening, _closing = "\n\n<information>", "</information>\n\n"
    marks: tuple[str, str] | None = (_opening, _closing)
    instruction = (
        "Work out the answer to the question step by step. Put your reasoning between <think> and </think>, before "
        "every action. Whenever you lack a fact, ask the search engine by writing <search> your query </search>; what "
        "it finds is shown to you between <information> and </information>. Search as often as you need. When you know "
        "the answer, give it alone and short between <answer> and </answer>, for example <answer> Lisbon </answer>."
    )
    _done = re.compile(r"</(search|answer)>")
    _any = re.compile(r"(</?(?:think|search|information|answer)>)")
    _tag = re.compile(r"<\s*+(/?+)\s*+(think|search|information|answer)\s*+>", re.IGNORECASE)

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

    def act(self, action: Search | Access | Answer) -> str:
        match action:
            case Search((query,)):
                return f"<search> {query} </search>"
            case Answer(text):
                return f"<answer> {text} </answer>"
        raise ValueError(f"the tags have no word for {action}")

    def formed(self, text: str, action: Action) -> bool:
        """One thought and one element of the action, only white space around them."""
        tag = {Search: "search", Answer: "answer"}.get(type(action), "")
        # outside, <think>, thought, </think>, outside, <tag>, content, </tag>, outside
        pieces = self._any.split(text)
        return pieces[1::2] == ["<think>", "</think>", f"<{tag}>", f"</{tag}>"] and not "".join(pieces[::4]).strip()

    def observe(self, action: Search | Access, found: Sequence[Sequence[Hit]]) -> Observation:  # noqa: ARG002
        documents = [
            f"Doc {number}(Title: {self._quiet(hit.passage.title)}) {self._quiet(hit.passage.text)}\n"
            for number, hit in enumerate((hit for hits in found for hit in hits), 1)
        ]
        return self._shown("".join(documents) or "Nothing was found.\n")

    def correct(self, action: Malformed) -> Observation:
        return self._shown(
            f"No action was taken: {action.reason}. Write <search> query </search> to search or "
            "<answer> answer </answer> to answer."
        )

    def told(self, said: Sequence[str], shown: Sequence[Observation]) -> list[dict[str, str]]:
        seen = [each.text for each in shown]
        content = "".join(text + after for text, after in zip(said, [*seen, ""], strict=True))
        return [{"role": "assistant", "content": content}]

    def _shown(self, body: str) -> Observation:
        return Observation(self._opening, body, self._closing)

    def _quiet(self, text: str) -> str:
        """Document text with the grammar's tags in round brackets, so that it cannot speak for the model."""
        text = text[:LONGEST]
        return self._tag.sub(r"(\1\2)", text) if "<" in text else text

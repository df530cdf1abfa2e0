"""The forms in which models write function calls, and what a turn in one of them says."""

import json
import re
from enum import StrEnum
from typing import NamedTuple, Protocol


class Kind(StrEnum):
    """What a turn does."""

    CALL = "call"
    ANSWER = "answer"
    NEITHER = "neither"


class Said(NamedTuple):
    """A turn taken apart: the content of its action, and what stands around it."""

    kind: Kind
    content: str
    before: str = ""
    after: str = ""


class Form(Protocol):
    """How calls are told from other text."""

    stops: tuple[str, ...]
    arguments: str  # the key under which a call holds them
    example: str
    words: tuple[str, ...]  # the names of its tags

    def said(self, text: str) -> Said:
        """What a turn says; total, it never raises. For NEITHER the content is the reason."""
        ...

    def written(self, call: str) -> str:
        """A call, given as JSON, as the model writes it."""
        ...


class Hermes:
    """JSON between <tool_call> and </tool_call>, as Hermes and Qwen write it; the first closing tag ends a turn."""

    stops: tuple[str, ...] = ("</tool_call>", "</answer>")
    arguments = "arguments"
    example = '<tool_call>\n{"name": "search", "arguments": {"query_list": ["your query"]}}\n</tool_call>'
    words: tuple[str, ...] = ("tool_call", "tool_response", "tools")
    _done = re.compile(r"</(tool_call|answer)>")

    def said(self, text: str) -> Said:
        closing = self._done.search(text)
        if closing is None:
            return Said(Kind.NEITHER, "neither a function call nor an answer was closed")
        before, opening, content = text[: closing.start()].rpartition(f"<{closing[1]}>")
        if not opening:
            return Said(Kind.NEITHER, f"</{closing[1]}> closes nothing that was opened")
        kind = Kind.ANSWER if closing[1] == "answer" else Kind.CALL
        return Said(kind, content, before, text[closing.end() :])

    def written(self, call: str) -> str:
        return f"<tool_call>\n{call}\n</tool_call>"


class Bare:
    """JSON alone, as Llama 3 writes it: the turn ends with the model's own end token."""

    stops: tuple[str, ...] = ("</answer>",)
    arguments = "parameters"
    example = '{"name": "search", "parameters": {"query_list": ["your query"]}}'
    words: tuple[str, ...] = ()
    _call = re.compile(r'\{\s*"(?:name|type)"\s*:')

    def said(self, text: str) -> Said:
        head, closing, after = text.partition("</answer>")
        before, opening, content = head.rpartition("<answer>") if closing else (text, "", "")
        spoken = before if opening else text
        if call := self._call.search(spoken):
            end = self._end(spoken, call.start())
            return Said(Kind.CALL, spoken[call.start() : end], spoken[: call.start()], spoken[end:])
        if opening:
            return Said(Kind.ANSWER, content, before, after)
        return Said(
            Kind.NEITHER,
            "</answer> closes nothing that was opened" if closing else "no function was called and no answer given",
        )

    def written(self, call: str) -> str:
        return call

    def _end(self, text: str, start: int) -> int:
        """Where the object that begins there ends; the end of the text where it cannot be read."""
        try:
            return json.JSONDecoder().raw_decode(text, start)[1]
        except (ValueError, RecursionError):
            return len(text)


FORMS: tuple[Form, ...] = (Hermes(), Bare())

"""What a turn says beside its action, told piece by piece while the turn is on its way."""

import re
from collections.abc import Sequence

from sleuth.agent.protocol import Protocol
from sleuth.records import Answer, ToolCall

TAGS = ("<think>", "</think>")
_TAG = re.compile("|".join(TAGS))
_OPENING = re.compile(r"<\w+>")
BARE = 8  # letters by which an action without a tag is known: {"name":


def openings(protocol: Protocol) -> tuple[str, ...]:
    """How the actions of a grammar begin; what comes after is no thought."""
    acts = (protocol.write(ToolCall.search("Oslo")), protocol.write(Answer("Oslo")))
    return tuple(dict.fromkeys(found[0] if (found := _OPENING.match(act)) else act[:BARE] for act in acts))


class Thoughts:
    """The thought of one turn as it grows: without tags, without white space around it, up to where an action begins.

    Pieces are final: what may yet become a tag, or the end, waits until more has come.
    """

    def __init__(self, openings: Sequence[str]) -> None:
        self._openings = tuple(openings)
        self._marks = (*openings, *TAGS)
        self._text = ""
        self._told = 0

    def hear(self, text: str) -> str:
        """Takes more of the turn; what is new of its thought."""
        self._text += text
        return self._new(self.whole(self._text[: len(self._text) - self._undecided()]))

    def end(self, text: str) -> str:
        """What is left to tell, when this is the text of the turn."""
        return self._new(self.whole(text))

    def whole(self, text: str) -> str:
        """The thought in a text that is all of a turn."""
        ends = [place for opening in self._openings if (place := text.find(opening)) >= 0]
        return _TAG.sub("", text[: min(ends, default=len(text))]).strip()

    def _new(self, thought: str) -> str:
        new = thought[self._told :]
        self._told = max(self._told, len(thought))
        return new

    def _undecided(self) -> int:
        """The length of the longest end with which a mark may begin."""
        longest = min(len(self._text), max(map(len, self._marks)) - 1)
        ends = (self._text[-length:] for length in range(longest, 0, -1))
        return next((len(end) for end in ends if any(mark.startswith(end) for mark in self._marks)), 0)

"""An answer as token ids of the turn that would give it, used to score its likelihood under a policy."""

from collections.abc import Sequence
from dataclasses import dataclass

from sleuth.agent.protocol import Protocol
from sleuth.model.tokens import Tokens, common_prefix
from sleuth.records import THINK_CLOSE, THINK_OPEN, Answer

OPENING_TOKENS = 8  # upper bound on the tokens of `<think>` with surrounding whitespace


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """The ids of a turn that answers; those from `first` to before `end` contain the answer itself."""

    ids: tuple[int, ...]
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class AnswerWriter:
    """Writes answers as the method `search` gives them: after a thought, which is empty here."""

    protocol: Protocol
    tokens: Tokens

    def write(self, answer: str, context: Sequence[int]) -> WrittenAnswer:
        """Write the turn that gives an answer after a context, which may have opened the thought already.

        Only the last OPENING_TOKENS tokens of the context are read.
        """
        opened = self.tokens.decode(context[-OPENING_TOKENS:]).rstrip().endswith(THINK_OPEN)
        ids = self._encode(answer, opened)
        # What differs with an answer that begins and ends with another character.
        other = self._encode(f"{'a' if answer[:1] == '0' else '0'}{'a' if answer[-1:] == '0' else '0'}", opened)
        first = common_prefix(ids, other)
        return WrittenAnswer(tuple(ids), first, max(first + 1, len(ids) - common_prefix(ids[::-1], other[::-1])))

    def _encode(self, answer: str, opened: bool) -> list[int]:
        thought = THINK_CLOSE if opened else f"{THINK_OPEN} {THINK_CLOSE}"
        return self.tokens.encode_trusted(f"{thought} {self.protocol.write(Answer(answer))}")

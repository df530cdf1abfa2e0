"""A model of random weights never says what a grammar knows: here every turn is a search, whatever it says."""

from collections.abc import Sequence
from itertools import cycle

from sleuth.agent.tags import Tags
from sleuth.model.tokens import Tokens
from sleuth.records import Action, ToolCall


class Forced(Tags):
    """Observations as ever, but nothing stops a turn before its last token, and each searches for the next query."""

    stops: tuple[str, ...] = ()

    def __init__(self, queries: Sequence[str], instruction: str) -> None:
        self._queries = cycle(queries)
        self.instruction = instruction

    def parse(self, text: str) -> Action:  # noqa: ARG002  nobody reads what such a model says
        return ToolCall.search(next(self._queries))


def fitted(text: str, length: int, tokens: Tokens) -> str:
    """About as many tokens of the text, which is repeated where it is too short."""
    ids = tokens.encode(text)
    if not ids:
        raise ValueError("a text without tokens cannot be fitted")
    return tokens.decode((ids * -(-length // len(ids)))[:length])

"""Finding stop strings across token borders."""

from collections.abc import Sequence
from functools import lru_cache

from sleuth.model.tokens import BROKEN, Tokens


class Stops:
    """Says after which token a stop string is complete."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.ending = lru_cache(maxsize=64)(self._ending)

    def matched(self, ids: Sequence[int], given: int, stops: tuple[str, ...]) -> str | None:
        """The stop that the last of the tokens sampled after the `given` ones completed: the one that ends first."""
        if ids[-1] not in self.ending(stops):
            return None
        text = self._tokens.decode(ids[given:])
        found = [(text.index(stop) + len(stop), stop) for stop in stops if stop in text]
        return min(found)[1] if found else None

    def _ending(self, stops: tuple[str, ...]) -> frozenset[int]:
        """The ids that can complete a stop: those whose text holds its last character, or a piece of a character.

        Decoding is only needed after these, and they are few.
        """
        if not stops:
            return frozenset()
        marks = {stop[-1] for stop in stops} | {BROKEN}
        texts = self._tokens.texts()
        if any(mark.isspace() for mark in marks):
            # Some decoders drop the space a text begins with, so a token on its own does not tell.
            return frozenset(range(len(texts)))
        return frozenset(token for token, text in enumerate(texts) if any(mark in text for mark in marks))

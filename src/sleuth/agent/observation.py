"""What the model is shown between two of its turns."""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from sleuth.model.tokens import BROKEN, Tokens


@dataclass(frozen=True, slots=True)
class Observation:
    """Opening, body and closing; only the body may be cut.

    A `trusted` frame is the chat template's own text, in which the names of special tokens mean those tokens, and its
    opening ends the model's turn first. `quoted` where that template writes the body as a string of JSON.
    """

    opening: str
    body: str
    closing: str
    trusted: bool = False
    quoted: bool = False

    @property
    def text(self) -> str:
        return self.opening + self.written + self.closing

    @property
    def written(self) -> str:
        """The body as it stands in the text."""
        return json.dumps(self.body, ensure_ascii=False)[1:-1] if self.quoted else self.body

    def ids(self, tokens: Tokens, limit: int) -> list[int] | None:
        """The tokens, `limit` of them at most; None where not one of the body would fit."""
        fitted = self.fit(tokens, limit)
        return None if fitted is None else fitted.ids

    def fit(self, tokens: Tokens, limit: int, *, ended: bool = False) -> "Fitted | None":
        """The observation in `limit` tokens at most; None where not one of the body would fit.

        `ended` where the model has ended its turn itself: that end is not written twice.
        """
        if not self.trusted:
            whole = tokens.encode(self.text)
            if len(whole) <= limit:
                return Fitted(whole, None)
        first, last = self.around(tokens)
        body, room = tokens.encode(self.written), limit - len(first) - len(last)
        if room <= 0:
            return None
        ids = [*(after_end(first, tokens) if ended and self.trusted else first), *body[:room], *last]
        return Fitted(ids, None if len(body) <= room else self._left(tokens.decode(body[:room]).rstrip(BROKEN)))

    def _left(self, written: str) -> str:
        """The part of the body that stands in the beginning of its written form."""
        if not self.quoted:
            return written
        for end in range(len(written), -1, -1):  # an escape sequence may be cut: its beginning is left out
            with suppress(ValueError):
                return str(json.loads(f'"{written[:end]}"'))
        return ""

    def around(self, tokens: Tokens) -> tuple[list[int], list[int]]:
        """The tokens of opening and closing."""
        encode = tokens.encode_trusted if self.trusted else tokens.encode
        return encode(self.opening), encode(self.closing)


class Fitted(NamedTuple):
    """The tokens of an observation, and what is left of its body where that was cut; None where it is whole."""

    ids: list[int]
    cut: str | None


def after_end(ids: list[int], tokens: Tokens) -> list[int]:
    """What follows the first special token: the one that ends a turn."""
    return ids[next((place + 1 for place, token in enumerate(ids) if token in tokens.special_ids), 0) :]

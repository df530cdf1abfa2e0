"""Observations: text shown to the model between two turns, cut to a budget and sanitised."""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sleuth.model.tokens import BROKEN, Tokens

MAX_CHARACTERS = 1_000_000  # longer texts are cut before sanitizing; no context is this long


@dataclass(frozen=True, slots=True)
class Observation:
    """Text shown to the model: opening, body and closing; only the body is ever cut.

    A `trusted` frame is the chat template's own text: it may contain special tokens, and its opening starts with
    the end of the model's turn. `quoted` marks a template that writes the body as a JSON string.
    """

    opening: str
    body: str
    closing: str
    trusted: bool = False
    quoted: bool = False

    @property
    def text(self) -> str:
        return self.opening + self.escaped_body + self.closing

    @property
    def escaped_body(self) -> str:
        """The body as written in `text`, escaped if it is quoted."""
        return json.dumps(self.body, ensure_ascii=False)[1:-1] if self.quoted else self.body

    def ids(self, tokens: Tokens, limit: int) -> list[int] | None:
        """Return at most `limit` token ids, or None if no token of the body fits."""
        fitted = self.fit(tokens, limit)
        return None if fitted is None else fitted[0]

    def fit(self, tokens: Tokens, limit: int, *, turn_ended: bool = False) -> tuple[list[int], str | None] | None:
        """Return at most `limit` token ids, and the kept part of a cut body; None if no token of the body fits.

        With `turn_ended`, the end-of-turn token is not repeated, because the model has sampled it.
        """
        if not self.trusted:
            whole = tokens.encode(self.text)
            if len(whole) <= limit:
                return whole, None
        opening, closing = self.frame_ids(tokens)
        body, room = tokens.encode(self.escaped_body), limit - len(opening) - len(closing)
        if room <= 0:
            return None
        if turn_ended and self.trusted:
            ends = (place for place, token in enumerate(opening, 1) if token in tokens.special_ids)
            opening = opening[next(ends, 0) :]
        ids = [*opening, *body[:room], *closing]
        return ids, None if len(body) <= room else self._unescape(tokens.decode(body[:room]))

    def _unescape(self, prefix: str) -> str:
        """Return the part of the body that corresponds to a prefix of its escaped form."""
        prefix = prefix.rstrip(BROKEN)
        if not self.quoted:
            return prefix
        for end in range(len(prefix), -1, -1):  # the cut may split an escape sequence
            with suppress(ValueError):
                return str(json.loads(f'"{prefix[:end]}"'))
        return ""

    def frame_ids(self, tokens: Tokens) -> tuple[list[int], list[int]]:
        """Return the token ids of the opening and of the closing."""
        encode = tokens.encode_trusted if self.trusted else tokens.encode
        return encode(self.opening), encode(self.closing)


def sanitizer(tags: Sequence[str], tokens: Tokens | None) -> Callable[[str], str]:
    """Return a function that rewrites grammar tags and special tokens in untrusted text with round brackets.

    It covers tags with these names, markers such as <|im_start|>, and every bracketed token added to the tokenizer,
    which would encode them as special tokens even in plain text.
    """
    added = [
        re.escape(token.content)
        for token in (() if tokens is None else tokens.tokenizer.added_tokens_decoder.values())
        if len(token.content) > 2 and token.content[0] + token.content[-1] in ("<>", "[]")
    ]
    pattern = re.compile(
        "|".join([rf"<\s*+/?+\s*+(?:{'|'.join(tags)})\s*+>", r"<\|[^<>|]*+\|>", *added]), re.IGNORECASE
    )

    def sanitize(text: str) -> str:
        text = text[:MAX_CHARACTERS]
        while pattern.search(text):  # terminates: each pass removes brackets
            text = pattern.sub(lambda found: f"({found[0][1:-1]})", text)
        return text

    return sanitize

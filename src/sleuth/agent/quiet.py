"""Text from outside with the words of the grammar in round brackets, so that it cannot speak for the model."""

import re
from collections.abc import Callable, Sequence

from sleuth.model.tokens import Tokens

BRACKETS = ("<>", "[]")
LONGEST = 1_000_000  # characters that are read; no context has room for more


def quieter(names: Sequence[str], tokens: Tokens | None) -> Callable[[str], str]:
    """Makes text quiet: tags of these names, marks like <|im_start|>, and every marked token the tokenizer added.

    Those that are not special would be read as the tokens they name even in plain text. Without a tokenizer there are
    only the tags and the marks.
    """
    added = [
        re.escape(token.content)
        for token in (() if tokens is None else tokens.tokenizer.added_tokens_decoder.values())
        if len(token.content) > 2 and token.content[0] + token.content[-1] in BRACKETS
    ]
    pattern = re.compile(
        "|".join([rf"<\s*+/?+\s*+(?:{'|'.join(names)})\s*+>", r"<\|[^<>|]*+\|>", *added]), re.IGNORECASE
    )

    def quiet(text: str) -> str:
        text = text[:LONGEST]
        while pattern.search(text):  # each round takes brackets away, so that it ends
            text = pattern.sub(lambda found: f"({found[0][1:-1]})", text)
        return text

    return quiet

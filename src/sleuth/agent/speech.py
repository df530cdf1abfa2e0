"""The text of tokens, told as they come."""

from collections.abc import Callable, Sequence

from sleuth.model.tokens import BROKEN, Tokens

TextListener = Callable[[str], None]


class Speech:
    """Tells the text of one turn piece by piece; a character split between tokens is told when it is whole."""

    def __init__(self, tokens: Tokens, hear: TextListener) -> None:
        self._tokens = tokens
        self._hear = hear
        self._ids: list[int] = []
        self._told = 0

    def listen(self, ids: Sequence[int]) -> None:
        """Takes the next tokens; all are decoded together, since some decoders join them with spaces."""
        self._ids.extend(ids)
        text = self._tokens.decode(self._ids)
        if text.endswith(BROKEN) or len(text) == self._told:
            return
        self._hear(text[self._told :])
        self._told = len(text)

"""Text to ids by its words: a word is encoded when it is first met, and looked up from then on.

This is exact where a tokenizer cuts every text before a single space between two signs, and between a letter or digit
and a stop. Byte-level BPE does by the patterns below and by its own: no piece of theirs goes on with a space behind a
sign, nor with a stop behind a letter or digit, and none looks at what lies before it.
"""

import json
import re
from array import array
from collections.abc import Collection, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise

from tokenizers import Tokenizer, models

PATTERNS = tuple(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    + numbers
    + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for numbers in (r"\p{N}", r"\p{N}{1,3}")  # of Qwen2 and Qwen3; of Llama 3
)
STOPS = ".,;:!?()\"'-\n"
SPACE = "\u0120"  # how a byte-level vocabulary writes the space
KNOWN = 1 << 18  # words that are remembered at most: some 40 MB
ENDS = 1 << 14
_BETWEEN = re.compile(r" (?<=\S )(?=\S)")
_STOPPED = re.compile(rf".*?[A-Za-z0-9](?=[{re.escape(STOPS)}])", re.DOTALL)


class Words:
    """The ids of texts; only for a tokenizer that `cuts_at_words`."""

    def __init__(self, tokenizer: Tokenizer, remembered: int = KNOWN) -> None:
        self._tokenizer = tokenizer
        self._remembered = remembered
        # Ids as bytes: joining those of a text copies memory, and touches no numbers.
        self._known: dict[str, bytes] = {}
        self._end = lru_cache(ENDS)(self._alone)

    @cached_property
    def _spaced(self) -> frozenset[int]:
        """The tokens that begin with a space."""
        return frozenset(token for text, token in self._tokenizer.get_vocab().items() if text.startswith(SPACE))

    def encode(self, text: str) -> list[int]:
        """The ids of a text: those that the tokenizer makes of it as a whole."""
        # Begun anew where there are too many; a call that is under way in another thread has the old ones.
        known = self._known if len(self._known) < self._remembered else {}
        self._known = known
        first, *words = text.split(" ")
        new = set(words[:-1]).difference(known)
        # What is known has signs at both ends, so that only these can be next to more than a single space.
        if not all(map(_is_signed, new)) or not words or not first[-1:].strip() or not words[-1][:1].strip():
            first, *words = _BETWEEN.split(text)
            new = set(words[:-1]).difference(known)
        stem, rest = _parted(words.pop()) if words else ("", "")
        if _is_signed(stem):
            words.append(stem)
            new |= {stem}.difference(known)
        else:
            rest = f" {stem}{rest}" if stem else ""
        self._learn(new, known)
        return array("i", b"".join((self._end(first), *map(known.__getitem__, words), self._end(rest)))).tolist()

    def _learn(self, words: Collection[str], known: dict[str, bytes]) -> None:
        """Remembers words with a space before each."""
        parted = [(word, *_parted(word)) for word in words]
        stems = list({stem for _, stem, _ in parted}.difference(known))
        known.update(zip(stems, self._spaced_apart(stems), strict=True))
        known.update((word, known[stem] + self._end(rest)) for word, stem, rest in parted if rest)

    def _spaced_apart(self, words: Sequence[str]) -> list[bytes]:
        """The ids of each word: of all in one text, where a token that begins with a space begins a word."""
        if not words:
            return []
        (ids,) = self._ids([" ".join(("", *words))])
        starts = [place for place, token in enumerate(ids) if token in self._spaced]
        if len(starts) != len(words):  # some hold spaces of their own
            return [array("i", each).tobytes() for each in self._ids([f" {word}" for word in words])]
        return [array("i", ids[start:end]).tobytes() for start, end in pairwise([*starts, len(ids)])]

    def _alone(self, text: str) -> bytes:
        return array("i", self._ids([text])[0]).tobytes()

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [each.ids for each in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


def cuts_at_words(tokenizer: Tokenizer) -> bool:
    """Whether the ids of a text are those of its words, as far as is known here."""
    model, steps = tokenizer.model, _steps(tokenizer)
    names = [token for token in tokenizer.get_added_tokens_decoder().values() if not token.special]
    return (
        isinstance(model, models.BPE)
        and model.dropout is None
        and (tokenizer.normalizer is None or json.loads(tokenizer.normalizer.__getstate__()) == {"type": "NFC"})
        and any(map(_is_byte_level, steps))
        and all(_is_byte_level(step) or _is_known(step) for step in steps)
        and not any(name.lstrip or name.rstrip or name.single_word for name in names)
        and not any(sign.isspace() or sign in STOPS for name in names for sign in name.content)
    )


def _steps(tokenizer: Tokenizer) -> list[dict[str, object]]:
    """The settings of what cuts a text into pieces, in the order in which they do."""
    if tokenizer.pre_tokenizer is None:
        return []
    step = json.loads(tokenizer.pre_tokenizer.__getstate__())
    return list(step["pretokenizers"]) if step["type"] == "Sequence" else [step]


def _is_byte_level(step: dict[str, object]) -> bool:
    return step["type"] == "ByteLevel" and not step["add_prefix_space"]


def _is_known(step: dict[str, object]) -> bool:
    if step["type"] == "Digits":
        return True
    patterns = [{"Regex": pattern} for pattern in PATTERNS]
    return step["type"] == "Split" and step["pattern"] in patterns and step["behavior"] == "Isolated"


def _is_signed(word: str) -> bool:
    """Whether a word has no space at its ends."""
    return bool(word) and not word[0].isspace() and not word[-1].isspace()


def _parted(word: str) -> tuple[str, str]:
    """A word up to the first stop behind a letter or digit, and the rest."""
    found = _STOPPED.match(word)
    return (word[: found.end()], word[found.end() :]) if found else (word, "")

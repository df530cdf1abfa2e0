"""The policy's tokenizer, a per-word encoding cache, and stop strings that span several tokens.

One rule: text from outside never becomes a special token.
"""

import json
import re
from array import array
from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from sleuth.errors import InputError

BROKEN = "\ufffd"  # decoding of an incomplete character
CACHED_TEXTS = 4096  # samples of a group share a prompt and often repeat a search
CACHED_WORDS = 1 << 18  # about 40 MB
CACHED_ENDS = 1 << 14

# Pre-tokenizer patterns of Qwen2 and Qwen3, and of Llama 3.
PATTERNS = tuple(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    + numbers
    + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for numbers in (r"\p{N}", r"\p{N}{1,3}")
)
# Pre-tokenizer patterns of the quickstart models (tags, JSON).
TAG_PATTERN = r" ?</?[a-z]+>| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]|\s+"
JSON_PATTERN = r" ?</?[a-z_]+>| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9<]+| ?<|\s+"
PUNCTUATION = ".,;:!?()\"'-\n"
SPACE = "\u0120"  # the space in a byte-level vocabulary
_SINGLE_SPACE = re.compile(r" (?<=\S )(?=\S)")
_STEM = re.compile(rf".*?[A-Za-z0-9](?=[{re.escape(PUNCTUATION)}])", re.DOTALL)


class Tokens:
    """Tokenizer of a policy; special ids come only from the model's own chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        # Copies, because a tokenizer's settings are shared by all its users.
        untrusted, trusted = _copy(tokenizer), _copy(tokenizer)
        untrusted.encode_special_tokens = True
        encode = WordEncoder(untrusted).encode if splits_at_words(untrusted) else partial(_encode, untrusted)
        self._encode = lru_cache(CACHED_TEXTS)(encode)
        self._encode_trusted = lru_cache(CACHED_TEXTS)(partial(_encode, trusted))
        self._texts: list[str] | None = None

    @classmethod
    def load(cls, folder: Path) -> "Tokens":
        if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
            raise InputError(f"{folder} has no tokenizer; expected tokenizer.json next to config.json: save one there")
        from transformers import AutoTokenizer  # loads torch

        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:  # `tokenizers` raises plain exceptions for unreadable files
            raise InputError(f"the tokenizer in {folder} cannot be read ({error}); save it again") from error
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise InputError(f"{folder} has a slow (Python) tokenizer; expected a tokenizer.json: convert it first")
        return cls(tokenizer)

    def encode(self, text: str) -> list[int]:
        """Encode untrusted text: names of special tokens are ordinary characters."""
        # A lone surrogate, which JSON allows, has no UTF-8 encoding and becomes a question mark.
        return list(self._encode(text if text.isascii() else text.encode(errors="replace").decode()))

    def encode_trusted(self, text: str) -> list[int]:
        """Encode trusted text, in which the names of special tokens become those tokens."""
        return list(self._encode_trusted(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids, without special tokens."""
        # The backend directly: the transformers class first checks every id in Python.
        text: str = self.tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    @cached_property
    def prefix_ids(self) -> list[int]:
        """Ids that this tokenizer prepends to every text: its BOS token, or nothing."""
        ids: list[int] = self.tokenizer("")["input_ids"]
        return [token for token in ids if token == self.tokenizer.bos_token_id]

    @property
    def eos_id(self) -> int | None:
        eos = self.tokenizer.eos_token_id
        return eos if isinstance(eos, int) else None

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that `encode` never returns."""
        return frozenset(token for token, name in self.tokenizer.added_tokens_decoder.items() if name.special)

    def texts(self) -> list[str]:
        """Text of every id, decoded alone; an incomplete character decodes to BROKEN."""
        if self._texts is None:
            count = 1 + max(self.tokenizer.get_vocab().values())
            self._texts = self.tokenizer.batch_decode([[token] for token in range(count)])
        return self._texts


def _copy(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    copy = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    # The batch call releases the GIL, so that the engine's thread can run meanwhile.
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


class StopStrings:
    """Finds the token that completes a stop string."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.candidate_ids = lru_cache(maxsize=64)(self._candidate_ids)

    def match(self, ids: Sequence[int], prompt_length: int, stops: tuple[str, ...]) -> str | None:
        """Return the stop string that the last token completes in the text after the prompt; the first to end wins."""
        if ids[-1] not in self.candidate_ids(stops):
            return None
        text = self._tokens.decode(ids[prompt_length:])
        found = [(text.index(stop) + len(stop), stop) for stop in stops if stop in text]
        return min(found)[1] if found else None

    def _candidate_ids(self, stops: tuple[str, ...]) -> frozenset[int]:
        """Ids that may complete a stop string: their text contains its last character, or part of a character."""
        if not stops:
            return frozenset()
        last_characters = {stop[-1] for stop in stops} | {BROKEN}
        texts = self._tokens.texts()
        if any(character.isspace() for character in last_characters):
            # Some decoders drop a leading space, so the text of a single token is not conclusive.
            return frozenset(range(len(texts)))
        return frozenset(
            token for token, text in enumerate(texts) if any(character in text for character in last_characters)
        )


class WordEncoder:
    """Encodes text word by word with a cache; exact for tokenizers that pass `splits_at_words`.

    The pre-tokenizer must always split before a single space between two non-space characters, and between a letter or
    digit and punctuation. Byte-level BPE or WordPiece with these patterns does: no piece continues across these
    positions, and no pattern looks behind.
    """

    def __init__(self, tokenizer: Tokenizer, capacity: int = CACHED_WORDS) -> None:
        self._tokenizer, self._capacity = tokenizer, capacity
        # Ids as bytes: concatenating a text is then a memory copy.
        self._words: dict[str, bytes] = {}
        self._encode_end = lru_cache(CACHED_ENDS)(lambda text: array("i", self._ids([text])[0]).tobytes())

    @cached_property
    def _space_prefixed(self) -> frozenset[int]:
        return frozenset(token for text, token in self._tokenizer.get_vocab().items() if text.startswith(SPACE))

    def encode(self, text: str) -> list[int]:
        """Return the ids that the tokenizer gives the whole text."""
        # A full cache is replaced, not cleared: another thread may be reading it.
        words = self._words if len(self._words) < self._capacity else {}
        self._words = words
        first, *rest = text.split(" ")
        new = set(rest[:-1]).difference(words)
        # Cached words begin and end with non-space characters, so only new ones can adjoin more than a single space.
        if not all(map(_is_trimmed, new)) or not rest or not first[-1:].strip() or not rest[-1][:1].strip():
            first, *rest = _SINGLE_SPACE.split(text)
            new = set(rest[:-1]).difference(words)
        stem, end = _split_stem(rest.pop()) if rest else ("", "")
        if _is_trimmed(stem):
            rest.append(stem)
            new |= {stem}.difference(words)
        else:
            end = f" {stem}{end}" if stem else ""
        split = [(word, *_split_stem(word)) for word in new]
        stems = list({stem for _, stem, _ in split}.difference(words))
        words.update(zip(stems, self._encode_spaced(stems), strict=True))
        words.update((word, words[stem] + self._encode_end(ending)) for word, stem, ending in split if ending)
        encoded = (self._encode_end(first), *map(words.__getitem__, rest), self._encode_end(end))
        return array("i", b"".join(encoded)).tolist()

    def _encode_spaced(self, words: Sequence[str]) -> list[bytes]:
        """Encode words, each with a leading space, as one text, and split the ids at tokens that begin with a space."""
        if not words:
            return []
        (ids,) = self._ids([" ".join(("", *words))])
        starts = [position for position, token in enumerate(ids) if token in self._space_prefixed]
        # Some words contain spaces, or an unknown one has no token that begins with its space.
        if len(starts) != len(words) or any(" " in word for word in words):
            return [array("i", each).tobytes() for each in self._ids([f" {word}" for word in words])]
        return [array("i", ids[start:end]).tobytes() for start, end in pairwise([*starts, len(ids)])]

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [each.ids for each in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the longest common prefix of two tuples, or two lists, of token ids."""
    if second[: len(first)] == first:  # the usual case, without a loop in Python
        return len(first)
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(first), len(second)))


def splits_at_words(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer is known to encode a text as the concatenation of its words."""
    model = tokenizer.model
    steps: list[dict[str, object]] = []
    if tokenizer.pre_tokenizer is not None:
        step = json.loads(tokenizer.pre_tokenizer.__getstate__())
        steps = step["pretokenizers"] if step["type"] == "Sequence" else [step]
    added = [token for token in tokenizer.get_added_tokens_decoder().values() if not token.special]
    return (
        (isinstance(model, models.WordPiece) or (isinstance(model, models.BPE) and model.dropout is None))
        and (tokenizer.normalizer is None or json.loads(tokenizer.normalizer.__getstate__()) == {"type": "NFC"})
        and any(map(_is_byte_level, steps))
        and all(_is_byte_level(step) or _is_known(step) for step in steps)
        and not any(token.lstrip or token.rstrip or token.single_word for token in added)
        and not any(character.isspace() or character in PUNCTUATION for token in added for character in token.content)
    )


def _is_byte_level(step: dict[str, object]) -> bool:
    return step["type"] == "ByteLevel" and not step["add_prefix_space"]


def _is_known(step: dict[str, object]) -> bool:
    if step["type"] == "Digits":
        return True
    patterns = [{"Regex": pattern} for pattern in (*PATTERNS, TAG_PATTERN, JSON_PATTERN)]
    return step["type"] == "Split" and step["pattern"] in patterns and step["behavior"] == "Isolated"


def _is_trimmed(word: str) -> bool:
    return bool(word) and not word[0].isspace() and not word[-1].isspace()


def _split_stem(word: str) -> tuple[str, str]:
    """Split a word before the first punctuation that follows a letter or digit."""
    found = _STEM.match(word)
    return (word[: found.end()], word[found.end() :]) if found else (word, "")

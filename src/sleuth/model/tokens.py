"""The tokenizer of a policy, with one rule: text from outside never becomes a special token."""

from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from sleuth.errors import InputError
from sleuth.model.words import Words, cuts_at_words

# What a piece of a character reads as.
BROKEN = "\ufffd"
# Texts whose ids are remembered: the samples of a group have one prompt, and often make the same searches.
REMEMBERED = 4096


class Tokens:
    """Text to ids and back; special ids come only from the chat template of the model itself."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        # Copies, since settings hold for all callers of a tokenizer at once.
        plain, trusted = _copied(tokenizer), _copied(tokenizer)
        plain.encode_special_tokens = True
        self._texts: list[str] | None = None
        self._encoded = lru_cache(REMEMBERED)(Words(plain).encode if cuts_at_words(plain) else partial(_encoded, plain))
        self._encoded_trusted = lru_cache(REMEMBERED)(partial(_encoded, trusted))

    @classmethod
    def load(cls, folder: Path) -> "Tokens":
        """Reads the tokenizer of a model folder."""
        if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
            raise InputError(f"{folder} holds no tokenizer; expected tokenizer.json beside config.json: save one there")
        # Here, for it loads torch: a process that is given a tokenizer does without.
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        # The library below raises plain exceptions for a file it cannot read.
        except Exception as error:
            raise InputError(f"{folder} holds no tokenizer that can be read ({error}); save it again") from error
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise InputError(f"{folder} holds a tokenizer of Python code; expected a tokenizer.json: convert it first")
        return cls(tokenizer)

    def encode(self, text: str) -> list[int]:
        """The ids of plain text; the names of special tokens in it are read as the letters they are."""
        # A lone surrogate, which JSON may hold, has no bytes: it reads as a question mark.
        return list(self._encoded(text if text.isascii() else text.encode(errors="replace").decode()))

    def encode_trusted(self, text: str) -> list[int]:
        """The ids of text of our own making, in which the names of special tokens mean those tokens."""
        return list(self._encoded_trusted(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        # Not through the library's own class, which looks at every id in Python first.
        text: str = self.tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    @cached_property
    def prefix_ids(self) -> list[int]:
        """The ids this tokenizer puts before every text: its begin token, or nothing."""
        ids: list[int] = self.tokenizer("")["input_ids"]
        return [token for token in ids if token == self.tokenizer.bos_token_id]

    @property
    def eos_id(self) -> int | None:
        """The id that ends a text."""
        end = self.tokenizer.eos_token_id
        return end if isinstance(end, int) else None

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids that no text from outside can become."""
        return frozenset(token for token, name in self.tokenizer.added_tokens_decoder.items() if name.special)

    def texts(self) -> list[str]:
        """The text of every id on its own; a piece of a character reads as BROKEN."""
        if self._texts is None:
            count = 1 + max(self.tokenizer.get_vocab().values())
            self._texts = self.tokenizer.batch_decode([[token] for token in range(count)])
        return self._texts


def _copied(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    copy = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    # As a batch, for only that lets other threads of Python go on meanwhile: the engine's does.
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids

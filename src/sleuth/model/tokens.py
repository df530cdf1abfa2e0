"""The tokenizer of a policy, with one rule: text from outside never becomes a special token."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sleuth.errors import InputError


class Tokens:
    """Text to ids and back; special ids come only from the chat template of the model itself."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        # A copy, since the setting holds for all callers of a tokenizer at once.
        self._plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._plain.encode_special_tokens = True
        self._plain.no_truncation()
        self._plain.no_padding()
        self._texts: list[str] | None = None

    @classmethod
    def load(cls, folder: Path) -> "Tokens":
        """Reads the tokenizer of a model folder."""
        if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
            raise InputError(f"{folder} holds no tokenizer; expected tokenizer.json beside config.json: save one there")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise InputError(f"{folder} holds a tokenizer of Python code; expected a tokenizer.json: convert it first")
        return cls(tokenizer)

    def encode(self, text: str) -> list[int]:
        """The ids of plain text; the names of special tokens in it are read as the letters they are."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def encode_trusted(self, text: str) -> list[int]:
        """The ids of text of our own making, in which the names of special tokens mean those tokens."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)  # noqa: S101  one sequence in, one string out
        return text

    @property
    def end(self) -> int | None:
        """The id that ends a text."""
        end = self.tokenizer.eos_token_id
        return end if isinstance(end, int) else None

    def texts(self) -> list[str]:
        """The text of every id on its own; pieces of a character read as the replacement character."""
        if self._texts is None:
            self._texts = self.tokenizer.batch_decode([[token] for token in range(len(self.tokenizer))])
        return self._texts

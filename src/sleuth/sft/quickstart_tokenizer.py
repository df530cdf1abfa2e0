"""The tokenizer of the quickstart: whole words of the generated world, any other text by its bytes."""

from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

# A tag, a word, a number, or one other sign, each with the space before it; then white space.
PIECE = r" ?</?[a-z]+>| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]|\s+"
END, PAD = "<|end|>", "<|pad|>"


def tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer in which every piece of the texts is one token: a small model copies a name word for word."""
    splitter = _splitter()
    counts = Counter(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = sorted(counts.keys() - set(letters))
    vocabulary = {piece: number for number, piece in enumerate([PAD, END, *letters, *words])}
    # An empty prefix lets any piece continue a word, so unknown words fall into known pieces and single bytes.
    model = models.WordPiece(
        vocab=vocabulary, unk_token=PAD, continuing_subword_prefix="", max_input_chars_per_word=10_000
    )
    backend = Tokenizer(model)
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=PAD)


def _splitter() -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(PIECE), behavior="isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

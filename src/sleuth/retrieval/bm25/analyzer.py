"""Text analysis: converts a text to the terms of a lexical index."""

import difflib
import re
import threading
import unicodedata
from itertools import pairwise

import Stemmer

from sleuth.errors import ConfigError

NO_STEMMER = "none"
# Lucene's English stop words. Other languages keep all words.
_STOPWORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with
"""
STOPWORDS = {"english": frozenset(_STOPWORDS.split())}

# Python's \w excludes combining marks, which words of Hindi, Tamil or vocalised Arabic contain. Variation selectors,
# which choose a glyph, are not part of a word.
_MARKS = "".join(
    chr(code)
    for code in range(0x300, 0x10000)
    if unicodedata.category(chr(code)) in ("Mn", "Mc") and not 0xFE00 <= code <= 0xFE0F
)
WORD = re.compile(rf"\w[\w{_MARKS}]*")
# Han, kana and Hangul do not separate words with spaces: character bigrams are used as terms.
_UNSPACED = (
    r"\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    r"\uac00-\ud7a3\uf900-\ufaff\U00020000-\U000323af"
)
UNSPACED = re.compile(f"[{_UNSPACED}]")
RUN = re.compile(rf"[{_UNSPACED}]+|(?:[^\W{_UNSPACED}]++[{_MARKS}]*+)+")
# ASCII separators to spaces: splitting is three times as fast as WORD.findall.
ASCII_SEPARATORS = {code: " " for code in range(128) if not WORD.match(chr(code))}


class Analyzer:
    """Tokenizes, filters and stems text with a Snowball stemmer, or none. Thread-safe."""

    def __init__(self, stemmer: str) -> None:
        if stemmer not in (NO_STEMMER, *Stemmer.algorithms()):
            near = difflib.get_close_matches(stemmer, Stemmer.algorithms(), n=1)
            expected = f"expected {NO_STEMMER} or one of {', '.join(Stemmer.algorithms())}"
            raise ConfigError(f"unknown stemmer {stemmer!r}; {f'did you mean {near[0]}?' if near else expected}")
        self.stemmer = stemmer
        self._stopwords = STOPWORDS.get(stemmer, frozenset())
        self._local = threading.local()

    def words(self, text: str) -> list[str]:
        """Split a text into lower-case words without stop words."""
        return [word for word in self.tokens(text) if self.is_word(word)]

    def tokens(self, text: str) -> list[str]:
        """Split a text into lower-case runs of letters and digits, stop words included."""
        if text.isascii():
            return text.lower().translate(ASCII_SEPARATORS).split()
        # Python lower-cases İ to i with a combining dot, which no text contains.
        text = unicodedata.normalize("NFKC", text).lower().replace("i\u0307", "i")
        if UNSPACED.search(text) is None:
            return WORD.findall(text)
        tokens: list[str] = []
        for run in RUN.findall(text):
            if len(run) < 3 or UNSPACED.match(run) is None:
                tokens.append(run)
            else:
                tokens += map("".join, pairwise(run))
        return tokens

    def is_word(self, token: str) -> bool:
        """Whether a token is indexed: neither a stop word nor a single letter such as a possessive s."""
        if len(token) == 1:
            return token.isdecimal() or UNSPACED.match(token) is not None
        return token not in self._stopwords

    def term(self, token: str) -> str | None:
        """Return the term of a token, or None if the token is not indexed."""
        return self.stem([token])[0] if self.is_word(token) else None

    def stem(self, words: list[str]) -> list[str]:
        """Return the term of each word."""
        if self.stemmer == NO_STEMMER:
            return words
        # Stemmers are not thread-safe. Their own cache is off because the callers cache terms.
        if not hasattr(self._local, "stem"):
            self._local.stem = Stemmer.Stemmer(self.stemmer, 0).stemWords
        terms: list[str] = self._local.stem(words)
        return terms

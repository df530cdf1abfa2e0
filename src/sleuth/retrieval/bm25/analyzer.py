"""Text analysis: converts a text to the terms of a lexical index."""

import difflib
import re
import threading
import unicodedata
from collections.abc import Iterable
from itertools import pairwise
from typing import Literal

import Stemmer

from sleuth.corpus.languages import STEMMERS, UNDETERMINED
from sleuth.errors import ConfigError

NO_STEMMER = "none"
BY_LANGUAGE = "auto"
DEFAULT_STEMMER = "english"  # of passages whose language is not known
# Version 2 folds diacritics and splits the scripts of Thailand, Laos, Cambodia and Burma; on ASCII text it equals 1.
Version = Literal[1, 2]
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
# Thai, Lao, Burmese and Khmer, whose letters carry marks: bigrams of letters with their marks.
_UNSPACED_2 = _UNSPACED + r"\u0e01-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1050-\u109d\u1780-\u17d3"
UNSPACED_2 = re.compile(f"[{_UNSPACED_2}]")
RUN_2 = re.compile(rf"[{_UNSPACED_2}]+|(?:[^\W{_UNSPACED_2}]++[{_MARKS}]*+)+")
LETTER = re.compile(rf".[{_MARKS}]*+")
# Diacritics of Latin and Greek letters; those of other scripts distinguish letters.
DIACRITICS = re.compile(r"(?<=[a-z\u0370-\u03ff])[\u0300-\u036f]+")
UNFOLDED = str.maketrans({"ø": "o", "æ": "ae", "œ": "oe", "ß": "ss", "đ": "d", "ł": "l", "ı": "i", "ð": "d", "ё": "е"})
# ASCII separators to spaces: splitting is three times as fast as WORD.findall.
ASCII_SEPARATORS = {code: " " for code in range(128) if not WORD.match(chr(code))}


def fold(word: str) -> str:
    """Return a lower-case word without diacritics: cafe for café."""
    if word.isascii():
        return word
    decomposed = unicodedata.normalize("NFD", word.translate(UNFOLDED))
    return unicodedata.normalize("NFC", DIACRITICS.sub("", decomposed))


def stemmer_of(stemmer: str, language: str) -> str:
    """Return the stemmer of a passage: that of its language if `stemmer` is auto, or none if it has no stemmer."""
    if stemmer != BY_LANGUAGE:
        return stemmer
    return DEFAULT_STEMMER if language in ("", UNDETERMINED) else STEMMERS.get(language, NO_STEMMER)


class Analyzer:
    """Tokenizes, filters and stems text with a Snowball stemmer, or none. Thread-safe."""

    def __init__(self, stemmer: str, version: Version = 1) -> None:
        if stemmer not in (NO_STEMMER, *Stemmer.algorithms()):
            near = difflib.get_close_matches(stemmer, Stemmer.algorithms(), n=1)
            expected = f"expected {BY_LANGUAGE}, {NO_STEMMER} or one of {', '.join(Stemmer.algorithms())}"
            raise ConfigError(f"unknown stemmer {stemmer!r}; {f'did you mean {near[0]}?' if near else expected}")
        self.stemmer = stemmer
        self._folds = version > 1
        self._unspaced, self._run = (UNSPACED_2, RUN_2) if version > 1 else (UNSPACED, RUN)
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
        if self._unspaced.search(text) is None:
            return WORD.findall(text)
        tokens: list[str] = []
        for run in self._run.findall(text):
            if self._unspaced.match(run) is None or len(run) < 2:
                tokens.append(run)
            else:
                letters = LETTER.findall(run) if self._folds else run
                tokens += map("".join, pairwise(letters)) if len(letters) > 1 else [run]
        return tokens

    def variants(self, token: str) -> tuple[str, ...]:
        """Return the tokens under which a token of a passage is indexed.

        Stemmers treat `organización` and `organizacion` differently. A word with diacritics is indexed both ways, so
        that a query finds it with or without them; a query is not expanded.
        """
        if not self._folds or token.isascii():
            return (token,)
        folded = fold(token)
        return (token,) if folded == token or self.term(folded) in (None, self.term(token)) else (token, folded)

    def is_word(self, token: str) -> bool:
        """Whether a token is indexed: neither a stop word nor a single letter such as a possessive s."""
        if len(token) == 1:
            return token.isdecimal() or self._unspaced.match(token) is not None
        return token not in self._stopwords

    def term(self, token: str) -> str | None:
        """Return the term of a token, or None if the token is not indexed."""
        return self.stem([token])[0] if self.is_word(token) else None

    def stem(self, words: list[str]) -> list[str]:
        """Return the term of each word."""
        if self.stemmer == NO_STEMMER:
            return [fold(word) for word in words] if self._folds else words
        # Stemmers are not thread-safe. Their own cache is off because the callers cache terms.
        if not hasattr(self._local, "stem"):
            self._local.stem = Stemmer.Stemmer(self.stemmer, 0).stemWords
        terms: list[str] = self._local.stem(words)
        return [fold(term) for term in terms] if self._folds else terms


class QueryAnalyzer:
    """Turns a query into terms by each of the stemmers that the passages of an index were analyzed with.

    The language of a short query cannot be detected, but a stem of the wrong language rarely occurs in the index.
    """

    def __init__(self, stemmers: Iterable[str], version: Version) -> None:
        self._analyzers = [Analyzer(stemmer, version) for stemmer in stemmers]

    def tokens(self, query: str) -> list[str]:
        return self._analyzers[0].tokens(query)

    def terms(self, token: str) -> list[str]:
        """Return the distinct terms of a token; none if it is a stop word of any of the languages."""
        terms = [analyzer.term(token) for analyzer in self._analyzers]
        return [] if None in terms else list(dict.fromkeys(term for term in terms if term is not None))

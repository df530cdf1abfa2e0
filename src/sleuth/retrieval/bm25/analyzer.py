"""Terms: what a lexical index keeps of a text."""

import difflib
import re
import threading
import unicodedata

import Stemmer

from sleuth.errors import ConfigError

NO_STEMMER = "none"
# Lucene's English stop words; texts in other languages keep all of their words.
_STOPWORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with
"""
STOPWORDS = {"english": frozenset(_STOPWORDS.split())}

# Vowel signs and points are no word characters to Python, and words of Hindi, Tamil or pointed Arabic are full of them.
# Variation selectors, which choose the look of a sign, are none.
_MARKS = "".join(
    chr(code)
    for code in range(0x300, 0x10000)
    if unicodedata.category(chr(code)) in ("Mn", "Mc") and not 0xFE00 <= code <= 0xFE0F
)
WORD = re.compile(rf"\w[\w{_MARKS}]*")
# Scripts written without spaces (Han, kana, Hangul): their words are not told apart, so pairs of neighbours are terms.
_UNSPACED = (
    r"\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    r"\uac00-\ud7a3\uf900-\ufaff\U00020000-\U000323af"
)
UNSPACED = re.compile(f"[{_UNSPACED}]")
RUN = re.compile(rf"[{_UNSPACED}]+|(?:[^\W{_UNSPACED}]++[{_MARKS}]*+)+")
# What is no word character of ASCII, as spaces: splitting at them finds the runs of WORD in a third of its time.
SPACED = {code: " " for code in range(128) if not WORD.match(chr(code))}


class Terms:
    """Texts as words and words as terms, by one of Snowball's stemmers or none; safe to use from many threads."""

    def __init__(self, stemmer: str) -> None:
        if stemmer not in (NO_STEMMER, *Stemmer.algorithms()):
            raise ConfigError(_unknown(stemmer))
        self.stemmer = stemmer
        self._stopwords = STOPWORDS.get(stemmer, frozenset())
        self._own = threading.local()

    def words(self, text: str) -> list[str]:
        """The words of a text in order, lower case, without stop words."""
        return [word for word in self.runs(text) if self.keeps(word)]

    def runs(self, text: str) -> list[str]:
        """The runs of letters and digits in a text, lower case, of which `keeps` tells the words."""
        if text.isascii():
            return text.lower().translate(SPACED).split()
        # A small İ is an i with a dot of its own, which nobody writes.
        text = unicodedata.normalize("NFKC", text).lower().replace("i\u0307", "i")
        if UNSPACED.search(text) is None:
            return WORD.findall(text)
        return [word for run in RUN.findall(text) for word in _pairs(run)]

    def keeps(self, word: str) -> bool:
        """False for a stop word, and for a lone letter: the s of a possessive is no word, the 8 of Apollo 8 is one."""
        if len(word) == 1:
            return word.isdecimal() or UNSPACED.match(word) is not None
        return word not in self._stopwords

    def term(self, run: str) -> str | None:
        """The term of a run; None for one that is no word."""
        return self.stemmed([run])[0] if self.keeps(run) else None

    def stemmed(self, words: list[str]) -> list[str]:
        """The term of each word."""
        if self.stemmer == NO_STEMMER:
            return words
        # A stemmer is not to be shared between threads. It need not remember: those who ask often do.
        if not hasattr(self._own, "stem"):
            self._own.stem = Stemmer.Stemmer(self.stemmer, 0).stemWords
        terms: list[str] = self._own.stem(words)
        return terms


def _pairs(run: str) -> list[str]:
    """A run of an unspaced script as its pairs of neighbours, any other as it is."""
    if len(run) < 3 or UNSPACED.match(run) is None:
        return [run]
    return [run[place : place + 2] for place in range(len(run) - 1)]


def _unknown(stemmer: str) -> str:
    near = difflib.get_close_matches(stemmer, Stemmer.algorithms(), n=1)
    meant = f"did you mean {near[0]}?" if near else f"expected {NO_STEMMER} or one of {', '.join(Stemmer.algorithms())}"
    return f"there is no stemmer {stemmer!r}; {meant}"

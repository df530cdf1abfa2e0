"""Terms: what a lexical index keeps of a text."""

import re
import threading
import unicodedata

from Stemmer import Stemmer

LANGUAGE = "english"
# Two characters or more, so that the s of a possessive is no word; or a digit, as in Apollo 8.
WORD = re.compile(r"\w\w+|\d")
# Lucene's.
_STOPWORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with
"""
STOPWORDS = frozenset(_STOPWORDS.split())

_own = threading.local()


def words(text: str) -> list[str]:
    """The words of a text in order, lower case, without stop words."""
    found = WORD.findall(unicodedata.normalize("NFKC", text).lower())
    return [word for word in found if word not in STOPWORDS]


def stemmed(found: list[str]) -> list[str]:
    """The term of each word; safe to call from many threads."""
    # A stemmer is not to be shared between threads, and a new one each time is slow: its cache is empty.
    if not hasattr(_own, "stem"):
        _own.stem = Stemmer(LANGUAGE).stemWords
    terms: list[str] = _own.stem(found)
    return terms

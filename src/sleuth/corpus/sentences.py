"""Text cut at the ends of its sentences; the pieces put together are the text."""

import re
from itertools import pairwise

# A full stop, what may close behind it, and the spaces; scripts written without spaces need none.
BORDER = re.compile(
    r"""(?<![.!?…‽؟۔।։])[.!?…‽؟۔।։]++["'”’»)\]]*+\s++|(?<![。！？｡])(?P<unspaced>[。！？｡]++)["'”’」』）》】\s]*+"""
)
WORD_BEFORE = re.compile(r"[\w.&-]{1,20}$")
ABBREVIATIONS = frozenset(
    """
    dr mr mrs ms mx prof rev hon st sr jr messrs mme mlle gen col maj capt cmdr lt sgt adm gov sen rep pres supt
    eds trans op cit al etc cf ca approx viz vs ibid inc ltd co corp bros dept univ assn ave blvd mt ft
    jan feb apr jun jul aug sep sept oct nov dec resp incl esp abbr bzw usw vgl hrsg
    """.split()  # noqa: SIM905 - a table of a hundred words is read as lines
)
BEFORE_NUMBERS = frozenset(
    {"no", "nos", "nr", "art", "vol", "vols", "p", "pp", "fig", "figs", "eq", "eqs", "sec", "ch"}
)


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, each with the spaces behind it; none is empty."""
    borders = (border for border in BORDER.finditer(paragraph) if border.end() < len(paragraph))
    cuts = [0, *(border.end() for border in borders if _ends_sentence(paragraph, border)), len(paragraph)]
    return [paragraph[start:end] for start, end in pairwise(cuts) if start < end]


def _ends_sentence(text: str, border: re.Match[str]) -> bool:
    """Whether a mark followed by a space ends a sentence: not after an abbreviation, not before a small letter."""
    following = text[border.end()]
    if border["unspaced"]:
        return True
    if following.islower():
        return False
    before = WORD_BEFORE.search(text, max(0, border.start() - 20), border.start())
    return before is None or border[0].rstrip() != "." or not _is_abbreviation(before[0], following)


def _is_abbreviation(word: str, following: str) -> bool:
    """Titles and the like; single letters, which are initials; and words with full stops in them, such as U.S."""
    small = word.lower()
    known = small in ABBREVIATIONS or (small in BEFORE_NUMBERS and following.isdigit())
    return known or (len(word) == 1 and word.isalpha()) or "." in word

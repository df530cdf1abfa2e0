"""Excerpts: the part of a page around the snippet that a search engine quoted from it."""

import re
from collections import Counter
from html import unescape
from itertools import pairwise

WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
TAG = re.compile(r"</?(?:b|br|em|i|mark|strong|wbr)\s*/?>", re.IGNORECASE)
SENTENCE_END = re.compile(r"[.!?。！？]['\")\]»”’]*\s+")
MARKS_BEFORE = re.compile(r"(?<![^\w\s])[^\w\s]*+\Z")
MARKS_AFTER = re.compile(r"[^\w\s]*")
MIN_COVERAGE = 0.4  # share of the snippet's words that a window must contain to count as its origin


def excerpt(text: str, snippet: str, words: int = 300) -> str:
    """Return at most `words` words of the text around the snippet, or the snippet if the text does not contain it.

    The excerpt is contiguous, and starts and ends at a paragraph or else a sentence boundary if possible.
    """
    spans = [match.span() for match in WORD.finditer(text)]
    page_words = [text[start:end].lower() for start, end in spans]
    snippet_words = [match.group().lower() for match in WORD.finditer(plain(snippet))]
    origin = _find_origin(page_words, snippet_words, words)
    if origin is None:
        return snippet
    # Extend the window equally on both sides, up to the allowed words and the ends of the page.
    spare = max(0, words - (origin[1] - origin[0]))
    last = min(len(spans), max(0, origin[0] - spare // 2) + words)
    first = max(0, last - words)
    start = _start(text, spans[first][0] if first else 0, spans[origin[0]][0])
    end = _end(text, spans[origin[1] - 1][1], spans[last - 1][1] if last < len(spans) else len(text))
    return text[start:end].strip()


def plain(snippet: str) -> str:
    """Remove highlighting tags and entities from a snippet."""
    return unescape(TAG.sub("", snippet))


def _find_origin(page: list[str], snippet: list[str], words: int) -> tuple[int, int] | None:
    """Return the window of the page that best covers the snippet; rare words weigh more.

    Pairs of adjacent words count like words, so that a window in the snippet's own order wins.
    """
    known, pairs = set(snippet), set(pairwise(snippet))
    frequency = Counter(word for word in page if word in known)
    if not known or len(frequency) < MIN_COVERAGE * len(known):
        return None
    weights: dict[object, float] = {word: 1.0 / count for word, count in frequency.items()}
    pair_frequency = Counter(pair for pair in pairwise(page) if pair in pairs)
    weights.update({pair: 1.0 / count for pair, count in pair_frequency.items()})
    width = min(words, 2 * len(snippet))
    end = _best_end(page, weights, width)
    inside = [place for place in range(max(0, end - width), end) if page[place] in known]
    if not inside or len({page[place] for place in inside}) < MIN_COVERAGE * len(known):
        return None
    return inside[0], inside[-1] + 1


def _best_end(page: list[str], weights: dict[object, float], width: int) -> int:
    """Return the end of the first window with the highest total weight; repeated words in a window count once."""
    counts: Counter[object] = Counter()
    weight = best_weight = 0.0
    best = 0
    for place, word in enumerate(page):
        for added in (word, (page[place - 1], word) if place else None):
            if added in weights:
                counts[added] += 1
                weight += weights[added] if counts[added] == 1 else 0.0
        left = place - width
        if left >= 0:
            for removed in (page[left], (page[left], page[left + 1])):
                if removed in weights:
                    counts[removed] -= 1
                    weight -= weights[removed] if counts[removed] == 0 else 0.0
        if weight > best_weight + 1e-9:
            best_weight, best = weight, place + 1
    return best


def _start(text: str, earliest: int, latest: int) -> int:
    """Return the start of the first paragraph in the range, or else of the first sentence, or else of the range."""
    if earliest == 0 or text[earliest - 1] == "\n":
        return earliest
    newline = text.find("\n", earliest, latest)
    if newline >= 0:
        return newline + 1
    sentence = SENTENCE_END.search(text, earliest, latest)
    if sentence:
        return sentence.end()
    marks = MARKS_BEFORE.search(text, max(0, earliest - 8), earliest)
    return marks.start() if marks else earliest


def _end(text: str, earliest: int, latest: int) -> int:
    """Return the end of the last paragraph in the range, or else of the last sentence, or else of the range."""
    marks = MARKS_AFTER.match(text, latest, latest + 8)
    latest = marks.end() if marks else latest
    if latest == len(text) or text[latest] == "\n":
        return latest
    newline = text.rfind("\n", earliest, latest)
    if newline >= 0:
        return newline
    sentences = [match.end() for match in SENTENCE_END.finditer(text, earliest, latest)]
    return sentences[-1] if sentences else latest

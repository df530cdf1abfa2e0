"""The part of a page around the snippet that a search engine quoted from it."""

import re
from collections import Counter
from html import unescape
from itertools import pairwise

WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
TAG = re.compile(r"</?(?:b|br|em|i|mark|strong|wbr)\s*/?>", re.IGNORECASE)
SENTENCE_END = re.compile(r"[.!?。！？]['\")\]»”’]*\s+")
MARKS_BEFORE = re.compile(r"(?<![^\w\s])[^\w\s]*+\Z")
MARKS_AFTER = re.compile(r"[^\w\s]*")
# Below this share of the snippet's words a place of the page is not where the snippet came from.
ENOUGH = 0.4


def excerpt(text: str, snippet: str, words: int = 300) -> str:
    """At most `words` words of the text around the place the snippet was taken from; without such a place, the snippet.

    An excerpt is one piece of the text, and begins and ends with a paragraph, or else a sentence, where it can.
    """
    spans = [match.span() for match in WORD.finditer(text)]
    spoken = [text[start:end].lower() for start, end in spans]
    place = _place(spoken, _words(plain(snippet)), words)
    if place is None:
        return snippet
    first, last = _widened(place, len(spans), words)
    start = _start(text, spans[first][0] if first else 0, spans[place[0]][0])
    end = _end(text, spans[place[1] - 1][1], spans[last - 1][1] if last < len(spans) else len(text))
    return text[start:end].strip()


def plain(snippet: str) -> str:
    """A snippet without the tags and entities with which some engines adorn it."""
    return unescape(TAG.sub("", snippet))


def _words(text: str) -> list[str]:
    return [match.group().lower() for match in WORD.finditer(text)]


def _place(spoken: list[str], wanted: list[str], words: int) -> tuple[int, int] | None:
    """The window of the page that holds most of the snippet, from a word of it to a word of it; rare words count more.

    Pairs of neighbours count as words do: a window that says the snippet's words in its order is the better one.
    """
    known, pairs = set(wanted), set(pairwise(wanted))
    often = Counter(word for word in spoken if word in known)
    if not known or len(often) < ENOUGH * len(known):
        return None
    weights: dict[object, float] = {word: 1.0 / count for word, count in often.items()}
    pair_weights = Counter(pair for pair in pairwise(spoken) if pair in pairs)
    weights.update({pair: 1.0 / count for pair, count in pair_weights.items()})
    width = min(words, 2 * len(wanted))
    end = _best_end(spoken, weights, width)
    inside = [place for place in range(max(0, end - width), end) if spoken[place] in known]
    if not inside or len({spoken[place] for place in inside}) < ENOUGH * len(known):
        return None
    return inside[0], inside[-1] + 1


def _best_end(spoken: list[str], weights: dict[object, float], width: int) -> int:
    """Where the first of the heaviest windows ends; what stands in a window twice weighs once."""
    held: Counter[object] = Counter()
    weight = heaviest = 0.0
    best = 0
    for place, word in enumerate(spoken):
        for arrived in (word, (spoken[place - 1], word) if place else None):
            if arrived in weights:
                held[arrived] += 1
                weight += weights[arrived] if held[arrived] == 1 else 0.0
        gone = place - width
        if gone >= 0:
            for left in (spoken[gone], (spoken[gone], spoken[gone + 1])):
                if left in weights:
                    held[left] -= 1
                    weight -= weights[left] if held[left] == 0 else 0.0
        if weight > heaviest + 1e-9:
            heaviest, best = weight, place + 1
    return best


def _widened(place: tuple[int, int], count: int, words: int) -> tuple[int, int]:
    """The window with as much before as after it, up to the words allowed and no further than the page goes."""
    room = max(0, words - (place[1] - place[0]))
    last = min(count, max(0, place[0] - room // 2) + words)
    return max(0, last - words), last


def _start(text: str, earliest: int, latest: int) -> int:
    """The first start of a paragraph, else of a sentence, in that stretch; else its beginning."""
    if earliest == 0 or text[earliest - 1] == "\n":
        return earliest
    line = text.find("\n", earliest, latest)
    if line >= 0:
        return line + 1
    sentence = SENTENCE_END.search(text, earliest, latest)
    if sentence:
        return sentence.end()
    marks = MARKS_BEFORE.search(text, max(0, earliest - 8), earliest)
    return marks.start() if marks else earliest


def _end(text: str, earliest: int, latest: int) -> int:
    """The last end of a paragraph, else of a sentence, in that stretch; else its end."""
    marks = MARKS_AFTER.match(text, latest, latest + 8)
    latest = marks.end() if marks else latest
    if latest == len(text) or text[latest] == "\n":
        return latest
    line = text.rfind("\n", earliest, latest)
    if line >= 0:
        return line
    sentences = [match.end() for match in SENTENCE_END.finditer(text, earliest, latest)]
    return sentences[-1] if sentences else latest

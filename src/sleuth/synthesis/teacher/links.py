"""Links between passages of different documents: a name that one mentions and the other is about."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from sleuth.records import Passage
from sleuth.synthesis.documents import document_of
from sleuth.synthesis.vocabulary import is_code, words

MIN_NAME = 4  # characters
MAX_PASSAGES = 8  # a name in more passages than this is too common to lead to one of them


@dataclass(frozen=True, slots=True)
class Link:
    """`first` mentions the name; `second`, of another document, is about it."""

    name: str
    first: Passage
    second: Passage


def find_links(passages: Iterable[Passage], limit: int, seed: int) -> list[Link]:
    """Return up to `limit` links between passages, one per name, in an order that depends on the seed only."""
    mentions: dict[str, list[Passage]] = defaultdict(list)
    for passage in passages:
        for name in dict.fromkeys(word for word in words(passage.contents) if is_code(word) and len(word) >= MIN_NAME):
            mentions[name].append(passage)
    links = []
    for name in sorted(mentions):
        found = mentions[name]
        if len(found) > MAX_PASSAGES:
            continue
        about = [passage for passage in found if is_about(passage, name)]
        others = [each for each in found if about and document_of(each) != document_of(about[0])]
        if others:
            links.append(Link(name, others[0], about[0]))
    Random(seed).shuffle(links)
    return links[:limit]


def is_about(passage: Passage, name: str) -> bool:
    """Whether a name stands in the title of a passage, or at the beginning of one of its lines."""
    starts = (line.lstrip("-*•#|` ") for line in passage.text.splitlines())
    return name in words(passage.title) or any(line.startswith(name) for line in starts)
